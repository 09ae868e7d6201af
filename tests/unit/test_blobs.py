"""Blobs: written whole or not at all, checked when read, and never outside their directory."""

from __future__ import annotations

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
