"""Records whose header names are not UTF-8: legal for other clients, and fatal to the library's reader.

It would raise at each reading of the batch, for ever: nothing behind it in the partition would be read again.
Such a batch, and only such a one, is read a second time with the strange bytes as escapes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

_HEAD = struct.Struct(">qi")  # of a batch: its first offset, and how many bytes follow


class _Lenient(bytearray):
    """Bytes that decode without fail, and so do slices of them."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Lenient(found) if isinstance(found, bytearray) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:  # noqa: ARG002 - the shape
        return super().decode(encoding, "backslashreplace")


class _Batch:
    """A batch as the fetcher uses it: its facts are the library's, its records are read here."""

    def __init__(self, batch: Any, data: bytes) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._batch))
        except UnicodeDecodeError:
            return iter(_read_again(self._data, self._batch.base_offset))


class LenientRecords:
    """`aiokafka.record.MemoryRecords`, as far as the fetcher uses it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._records = MemoryRecords(data)

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return None if batch is None else _Batch(batch, self._data)

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())


def _read_again(data: bytes, base_offset: int) -> list[Any]:
    at = 0
    while True:
        first, size = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + size
        if first == base_offset:
            break
        at = end
    batch = _DefaultRecordBatchPy(data[at:end])
    batch._maybe_uncompress()  # noqa: SLF001 - the library offers no other way in
    batch._buffer = _Lenient(batch._buffer)  # noqa: SLF001 - as above
    return list(batch)


def install() -> None:
    """Makes the library's consumers read leniently; the name is where its fetcher looks for the class."""
    fetcher.MemoryRecords = LenientRecords
