"""Which partition a record goes to: stable where readers must agree, by load where any will do."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

RandomUnit = Callable[[], float]


def stable_partition(name: str, partitions: int) -> int:
    """The same partition for the same name, in every process and release (CRC-32 of its UTF-8)."""
    return zlib.crc32(name.encode()) % partitions


def lane_partition(
    partitions: int, in_flight: Mapping[int, int], session_id: str | None, random_unit: RandomUnit
) -> int:
    """A session's own partition, else the less loaded of two drawn at random (power of two choices)."""
    if session_id is not None:
        return stable_partition(session_id, partitions)
    first = int(random_unit() * partitions)
    if partitions < 2:
        return first
    second = (first + 1 + int(random_unit() * (partitions - 1))) % partitions
    return first if in_flight.get(first, 0) <= in_flight.get(second, 0) else second


def mint_for_partition(mint: Callable[[], str], partition: int, partitions: int) -> str:
    """An id whose stable partition is the given one: about `partitions` draws."""
    while True:
        name = mint()
        if stable_partition(name, partitions) == partition:
            return name
