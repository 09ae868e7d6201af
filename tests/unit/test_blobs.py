"""Blobs: written whole or not at all, checked when read, and never outside their directory."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from services.adapters.blobs import DirectoryBlobStore


async def test_what_is_put_comes_back(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path, "fleet.")
    key, sha256 = await store.put(b"bytes")
    again = await store.put(b"bytes")
    assert key.startswith("fleet.")
    assert again == (key, sha256)
    assert await store.get(key, sha256) == b"bytes"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [sha256]


async def test_a_blob_that_is_gone_is_a_key_error(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path)
    with pytest.raises(KeyError):
        await store.get("0" * 64, "0" * 64)


async def test_changed_bytes_are_a_value_error(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path)
    key, sha256 = await store.put(b"bytes")
    next(path for path in tmp_path.rglob("*") if path.is_file()).write_bytes(b"other")
    with pytest.raises(ValueError, match="not those that were written"):
        await store.get(key, sha256)


@pytest.mark.parametrize("key", ["../../etc/passwd", "fleet./etc/passwd", "other." + "0" * 64])
async def test_a_key_that_is_not_ours_reads_nothing(tmp_path: Path, key: str) -> None:
    with pytest.raises(KeyError):
        await DirectoryBlobStore(tmp_path, "fleet.").get(key, "0" * 64)


async def test_what_was_not_stored_for_long_enough_ages_out(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path, "fleet.")
    put = {name: await store.put(name) for name in (b"old", b"young", b"renewed")}
    unfinished = tmp_path / "ab" / ".unfinished-1"  # what a crash leaves
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(b"half")
    for path in [path for path in tmp_path.rglob("*") if path.is_file() and path.name != put[b"young"][1]]:
        os.utime(path, (time.time() - 1000, time.time() - 1000))
    await store.put(b"renewed")
    assert await store.age_out(900) == 2
    assert await store.get(*put[b"young"]) == b"young"
    assert await store.get(*put[b"renewed"]) == b"renewed"
    with pytest.raises(KeyError):
        await store.get(*put[b"old"])
    assert not unfinished.exists()
    assert await DirectoryBlobStore(tmp_path / "none").age_out(1) == 0


async def test_storing_and_ageing_at_once_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path)
    for _ in range(50):
        key, sha256 = await store.put(b"same")
        path = next(path for path in tmp_path.rglob("*") if path.is_file())
        os.utime(path, (1, 1))
        await asyncio.gather(store.age_out(900), store.put(b"same"))
        assert await store.get(key, sha256) == b"same"
