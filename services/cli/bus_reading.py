"""Topics as a command reads them: everything that is there now, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.cli.running_fleet import RunningFleet
from services.ports import InRecord, StartAt

_POLL_MS = 250


async def read_topic(running: RunningFleet, topic: str, partitions: int = 1) -> list[InRecord]:
    """All records of a topic in the order of their partitions' logs. Raises BusError."""
    reader = KafkaLogReader(
        running.bootstrap_servers,
        running.traits,
        topic=topic,
        partitions=range(partitions),
        client_id="chimera-cli",
        fetch_max_wait_ms=running.traits.fetch_max_wait_ms["control"],
    )
    try:
        await reader.start(at=StartAt("beginning"))
        records: list[InRecord] = []
        while not reader.caught_up():
            records += await reader.poll(timeout_ms=_POLL_MS, max_records=1_000)
        return records
    finally:
        await reader.stop()


@asynccontextmanager
async def publisher_of(running: RunningFleet) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(running.bootstrap_servers, running.traits, client_id="chimera-cli")
    try:
        await publisher.start()
        yield publisher
    finally:
        await publisher.stop()
