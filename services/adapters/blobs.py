"""Claim-checked payloads as files: content-addressed, written whole or not at all, checked when read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import time
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


class DirectoryBlobStore:
    """A BlobStore in one directory that all services of a fleet share. Keys begin with the fleet's prefix.

    File work is done on threads: an fsync takes milliseconds. The same bytes have the same key, and storing
    them again renews the file's time, which is what ageing goes by.
    """

    def __init__(self, directory: Path, prefix: str = "") -> None:
        self._directory = directory
        self._prefix = prefix

    async def put(self, data: bytes) -> tuple[str, str]:
        """Stores the bytes durably and returns (key, hex SHA-256)."""
        return await asyncio.to_thread(self._put, data)

    async def get(self, key: str, sha256: str) -> bytes:
        """Raises KeyError when the blob is gone or not ours, ValueError when its bytes changed."""
        return await asyncio.to_thread(self._get, key, sha256)

    async def age_out(self, older_than_s: float) -> int:
        """Removes the blobs that were not stored, nor stored again, for that long; how many."""
        return await asyncio.to_thread(self._age_out, older_than_s)

    def _path(self, name: str) -> Path:
        return self._directory / name[:2] / name

    def _put(self, data: bytes) -> tuple[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        if _renewed(path, len(data)):
            return self._prefix + digest, digest
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write(path, data)
        return self._prefix + digest, digest

    def _write(self, path: Path, data: bytes) -> None:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
        for directory in (path.parent, self._directory):  # the names must survive a crash too
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _age_out(self, older_than_s: float) -> int:
        gone, before_s = 0, time.time() - older_than_s
        for path in self._directory.glob("*/*"):  # also what a crash left unfinished
            if _written_s(path) < before_s:
                gone += _removed(path, before_s)
        return gone

    def _get(self, key: str, sha256: str) -> bytes:
        name = key.removeprefix(self._prefix)
        if not (key.startswith(self._prefix) and _SHA256.fullmatch(name)):
            raise KeyError(key)
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError(f"blob {key}: its bytes are not those that were written")
        return data


def _renewed(path: Path, size: int) -> bool:
    """Whether the blob is there, whole, and young again."""
    try:
        if path.stat().st_size != size:
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return path.exists()  # else it was put aside and found old just before


def _written_s(path: Path) -> float:
    """Unix time; of what is gone it is never old."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _removed(path: Path, before_s: float) -> bool:
    """Aside first, then looked at again: it may have been stored anew since."""
    aside = path.with_name(f".ageing-{path.name}")
    try:
        os.rename(path, aside)
        if aside.stat().st_mtime >= before_s:
            os.rename(aside, path)
            return False
        os.unlink(aside)
    except FileNotFoundError:  # another replica was faster
        return False
    return True
