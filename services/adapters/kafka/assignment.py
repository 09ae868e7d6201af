"""What a member needs to know of partitions that were just assigned to it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from services.adapters.kafka.end_offsets import end_offsets
from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.traits import BrokerTraits
from services.ports import Assigned


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """A group on one topic of one broker."""

    bootstrap_servers: str
    traits: BrokerTraits
    topic: str
    group: str
    client_id: str


async def read_assigned(
    place: GroupTopic, consumer: Any, partitions: Collection[int], *, timeout_s: float
) -> dict[int, Assigned]:
    """Offset, commit metadata and high-water mark of each partition. Raises BusError.

    The high-water mark is read after the assignment, so it may be above the one at its instant: a record
    that came in between counts as redelivered, never the other way round. Metadata counts only with the
    offset that it was committed with.
    """
    if not partitions:
        return {}
    try:
        async with asyncio.timeout(timeout_s):
            offsets = {p: await consumer.position(TopicPartition(place.topic, p)) for p in sorted(partitions)}
            committed = await _committed(place, partitions, timeout_s)
    except LIBRARY_FAULTS as fault:
        raise bus_error(f"assignment of {place.topic} to {place.group}", fault) from fault
    ends = await end_offsets(
        place.bootstrap_servers,
        place.traits,
        topic=place.topic,
        partitions=partitions,
        client_id=place.client_id,
        timeout_s=timeout_s,
    )
    return {
        partition: Assigned(offset, _metadata(committed.get(partition), offset), max(ends[partition], offset))
        for partition, offset in offsets.items()
    }


def _metadata(committed: tuple[int, str] | None, offset: int) -> str:
    return committed[1] if committed is not None and committed[0] == offset else ""


async def _committed(
    place: GroupTopic, partitions: Collection[int], timeout_s: float
) -> dict[int, tuple[int, str]]:
    if place.traits.commit_metadata_bytes == 0:
        return {}
    return await committed(place, partitions, timeout_s)


async def committed(
    place: GroupTopic, partitions: Collection[int], timeout_s: float
) -> dict[int, tuple[int, str]]:
    """Next offset and metadata that the group committed, by partition; -1 where it committed none."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=place.bootstrap_servers,
        client_id=f"{place.client_id}-commits",
        request_timeout_ms=int(timeout_s * 1000),
    )
    try:
        await admin.start()
        asked = [TopicPartition(place.topic, partition) for partition in partitions]
        found = await admin.list_consumer_group_offsets(place.group, partitions=asked)
    finally:
        await admin.close()
    return {tp.partition: (entry.offset, entry.metadata) for tp, entry in found.items()}
