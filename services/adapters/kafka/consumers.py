"""Building and closing aiokafka consumers: the only place that knows their insides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import ConsumerStoppedError

from schemas.topics import MAX_RECORD_BYTES
from services.adapters.kafka import lenient_records
from services.adapters.kafka.faults import LIBRARY_FAULTS
from services.ports import InRecord

METADATA_MAX_AGE_MS = 30_000
_FORCE_WAIT_S = 1.0
_POSITION_WAIT_S = 0.1


def new_consumer(
    bootstrap_servers: str, *, client_id: str, fetch_max_wait_ms: int, request_timeout_s: float, **group: Any
) -> Any:
    """An AIOKafkaConsumer, not started: no automatic commits, from the earliest record where it has no place.

    `group`: what else a member of a group needs; without it the consumer is read by assign().
    """
    lenient_records.install()
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        client_id=client_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # `latest` loses the records of a partition taken over uncommitted
        fetch_max_wait_ms=fetch_max_wait_ms,
        max_partition_fetch_bytes=2 * MAX_RECORD_BYTES,  # a record and what its batch adds always fit
        request_timeout_ms=int(request_timeout_s * 1000),
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        **group,
    )


def sticky_assignor() -> Any:
    """A fresh assignor class: the library keeps a consumer's state on the class, shared by all consumers."""
    return type(
        "StickyOfOneConsumer",
        (StickyPartitionAssignor,),
        {"member_assignment": None, "generation": StickyPartitionAssignor.DEFAULT_GENERATION_ID},
    )


async def close_consumer(consumer: Any, *, within_s: float) -> None:
    """Leave the group and close, within about `within_s` seconds; by force after that, without leaving.

    The library's own `stop` waits for a join in flight, which lasts as long as the slowest member.
    """
    closing = asyncio.create_task(consumer.stop())
    await asyncio.wait({closing}, timeout=within_s)
    if not closing.done():
        closing.cancel()
        await asyncio.wait({closing}, timeout=_FORCE_WAIT_S)
    failed = not closing.done() or closing.cancelled() or closing.exception() is not None
    if failed:
        await cut_off(consumer)
    _release_waiters(consumer)


async def cut_off(consumer: Any) -> None:
    """End a consumer's tasks and connections without a word to the group, as a killed process does."""
    consumer._closed = True  # noqa: SLF001 - there is no public way to end it at once
    coordinator, fetcher = consumer._coordinator, consumer._fetcher  # noqa: SLF001 - as above
    names = ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task")
    tasks = {task for name in names if (task := getattr(coordinator, name, None)) is not None}
    if fetcher is not None:
        fetcher._closed = True  # noqa: SLF001 - as above
        tasks.add(fetcher._fetch_task)  # noqa: SLF001 - as above
        tasks |= fetcher._pending_tasks  # noqa: SLF001 - as above
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_FORCE_WAIT_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # retrieved: what a dead consumer says no longer matters
    with contextlib.suppress(*LIBRARY_FAULTS):
        async with asyncio.timeout(_FORCE_WAIT_S):
            await consumer._client.close()  # noqa: SLF001 - as above
    _release_waiters(consumer)


def _release_waiters(consumer: Any) -> None:
    # A getmany that waits for the end of a rebalance is not woken by stop.
    if consumer._fetcher is not None:  # noqa: SLF001 - as above
        consumer._subscription.abort_waiters(ConsumerStoppedError())  # noqa: SLF001 - as above


async def furthest(consumer: Any, tp: Any, known: int) -> int:
    """`known`, or the library's own position if that is further: it passes what left no record behind, by
    compaction, retention or markers."""
    try:
        async with asyncio.timeout(_POSITION_WAIT_S):
            position: int = await consumer.position(tp)
            return max(known, position)
    except LIBRARY_FAULTS:
        return known


def coordination_fault(consumer: Any) -> str | None:
    """Why a member's coordination has ended or waits for its user, or None. Only getmany would say so."""
    coordinator = consumer._coordinator  # noqa: SLF001 - as above
    if coordinator is None:
        return None
    if coordinator._coordination_task.done():  # noqa: SLF001 - as above
        return "its coordination ended"
    fault = coordinator._pending_exception  # noqa: SLF001 - as above
    return None if fault is None else f"its coordination failed: {fault!r}"


def in_records(raw_records: Iterable[Any]) -> list[InRecord]:
    """The library's records as ours, in the same order."""
    return [
        InRecord(raw.topic, raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, _said(raw.headers))
        for raw in raw_records
    ]


def _said(headers: tuple[tuple[str, bytes | None], ...]) -> tuple[tuple[str, bytes], ...]:
    """Kafka lets a header have no value; nothing of ours writes one, so it reads as an empty one."""
    return tuple([(name, value or b"") for name, value in headers])
