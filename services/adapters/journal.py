"""A Journal as files: one for each process that had something to keep, locked for as long as it lives."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
import uuid_utils

from services.ports import LeftBehind, OutRecord

log = structlog.get_logger(__name__)
_SUFFIX = ".records"
_BYTES = "latin-1"  # any bytes as text, and back
_MOST_HEARD = 1_024  # lines of records that were heard, before the file is written anew


class DirectoryJournal:
    """A Journal in a directory that every worker of one fleet on this machine may write to.

    A line is written with one call and not synced: it survives SIGKILL, not a loss of power.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None  # made with the first record
        self._path: Path | None = None
        self._kept: dict[str, bytes] = {}
        self._heard = 0

    def keep(self, name: str, record: OutRecord) -> None:
        """See the port. Takes some 20 us."""
        line = _line(record)
        try:
            if self._file is None:
                self._path, self._file = _made(self._directory)
            _write(self._file, line)
        except OSError as fault:
            log.warning("not kept for the next worker", journal=str(self._directory), fault=str(fault))
            return
        self._kept[name] = line

    def heard(self, name: str) -> None:
        if self._kept.pop(name, None) is None or self._file is None:
            return
        self._heard += 1
        if self._kept and self._heard < _MOST_HEARD:
            return
        self._heard = 0
        try:
            os.ftruncate(self._file, 0)
            _write(self._file, b"".join(self._kept.values()))
        except OSError as fault:
            log.warning("a journal cannot be written anew", journal=str(self._path), fault=str(fault))

    def left_behind(self) -> Iterator[LeftBehind]:
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            file = None if path == self._path else _locked(path)
            if file is not None:
                yield LeftBehind(_read(path, file), partial(_forget, path, file))

    def close(self) -> None:
        if self._file is None or self._path is None or self._kept:
            return
        _forget(self._path, self._file)
        self._file = self._path = None


def _made(directory: Path) -> tuple[Path, int]:
    """A new file has its lock before it has the name by which others look for it."""
    directory.mkdir(parents=True, exist_ok=True)
    unnamed = directory / f"{uuid_utils.uuid7()}.new"
    file = os.open(unnamed, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return unnamed.rename(unnamed.with_suffix(_SUFFIX)), file
    except OSError:
        _forget(unnamed, file)
        raise


def _write(file: int, lines: bytes) -> None:
    """Raises OSError also where the disk took a part of it only."""
    if os.write(file, lines) < len(lines):
        raise OSError("the disk is full")


def _locked(path: Path) -> int | None:
    """None where its process lives, or somebody else found it first, or has forgotten it by now."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = os.fstat(file).st_nlink == 0
    except OSError:
        gone = True
    if gone:
        os.close(file)
        return None
    return file


def _forget(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _line(record: OutRecord) -> bytes:
    """Begins with a line's end: the line before may have been cut."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [(name, value.decode(_BYTES)) for name, value in record.headers],
    }
    return b"\n" + orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _read(path: Path, file: int) -> list[OutRecord]:
    """Its whole lines: a process may die, and a disk be full, in the middle of one."""
    records = []
    for line in os.pread(file, os.fstat(file).st_size, 0).split(b"\n"):
        try:
            if line:
                records.append(_record(orjson.loads(line)))
        except (ValueError, KeyError, TypeError) as fault:
            log.warning("a line of a journal cannot be read", file=path.name, fault=str(fault))
    return records


def _record(fields: dict[str, Any]) -> OutRecord:
    headers = [(name, value.encode(_BYTES)) for name, value in fields["headers"]]
    return OutRecord(
        fields["topic"], _bytes(fields["key"]), _bytes(fields["value"]), headers, fields["partition"]
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(_BYTES)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(_BYTES)
