"""Where a partition ends, asked on a connection of its own: right on every broker, empty partitions too."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka import TopicPartition

from services.adapters.kafka.consumers import close_consumer, new_consumer
from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.traits import BrokerTraits

# Beyond any real offset. A broker that does not know its end answers such a fetch with no record and the true
# high-water mark; one that does know it answers "out of range" and is never asked this way.
_FAR_OFFSET = 2**40
_PROBE_WAIT_MS = 1
_PAUSE_S = 0.002
_CLOSE_S = 1.0


async def end_offsets(
    bootstrap_servers: str,
    traits: BrokerTraits,
    *,
    topic: str,
    partitions: Collection[int],
    client_id: str,
    timeout_s: float,
) -> dict[int, int]:
    """The offset after the newest record, by partition. Raises BusError within about `timeout_s` seconds."""
    if not partitions:
        return {}
    consumer = new_consumer(
        bootstrap_servers,
        client_id=f"{client_id}-ends",
        fetch_max_wait_ms=_PROBE_WAIT_MS,
        request_timeout_s=timeout_s,
    )
    asked = [TopicPartition(topic, partition) for partition in sorted(set(partitions))]
    try:
        async with asyncio.timeout(timeout_s):
            await consumer.start()
            return await (_listed(consumer, asked) if traits.end_offsets else _fetched(consumer, asked))
    except LIBRARY_FAULTS as fault:
        raise bus_error(f"end of {topic}", fault) from fault
    finally:
        await close_consumer(consumer, within_s=_CLOSE_S)


async def _listed(consumer: Any, asked: list[Any]) -> dict[int, int]:
    ends = await consumer.end_offsets(asked)
    return {tp.partition: end for tp, end in ends.items()}


async def _fetched(consumer: Any, asked: list[Any]) -> dict[int, int]:
    consumer.assign(asked)
    for tp in asked:
        consumer.seek(tp, _FAR_OFFSET)
    while any(consumer.highwater(tp) is None for tp in asked):
        await asyncio.sleep(_PAUSE_S)
    return {tp.partition: consumer.highwater(tp) for tp in asked}
