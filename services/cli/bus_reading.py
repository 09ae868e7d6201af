"""Topics as a command reads them: everything that is there now, and no more."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.codec import SchemaError, Unknown, decode_fleet
from schemas.headers import to_text
from services.adapters.kafka.assignment import GroupTopic, committed
from services.adapters.kafka.end_offsets import end_offsets
from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.cli.running_fleet import RunningFleet
from services.core.fleet_table import FleetTable, stall_bounds
from services.ports import BusError, InRecord, StartAt

_POLL_MS = 250
_ADMIN_TIMEOUT_S = 10.0
ANSWER_S = 30.0
_STARTS_AGAIN_S = 15.0  # a node of Apache Kafka takes 3 to 8 s here
_KNOCK_S = 0.5
_BEGINNING = StartAt("beginning")


@asynccontextmanager
async def answering(running: RunningFleet) -> AsyncIterator[None]:
    """Our clients wait for a broker for as long as it takes; a command raises BusError where it is away."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(ANSWER_S) as limit:
            knocking = asyncio.create_task(_end_when_refused(limit, running.bootstrap_servers))
            try:
                yield
            finally:
                knocking.cancel()
    except TimeoutError:
        raise BusError(
            f"nothing answers at {running.bootstrap_servers} within {loop.time() - began_s:.0f} s: "
            "no fleet runs there, or its broker is away"
        ) from None


async def _end_when_refused(limit: asyncio.Timeout, bootstrap_servers: str) -> None:
    """Where every address refuses connections for as long as a broker takes to start again."""
    addresses = [address.rpartition(":") for address in bootstrap_servers.split(",")]
    refusals = 0
    while refusals * _KNOCK_S < _STARTS_AGAIN_S:
        await asyncio.sleep(_KNOCK_S)
        refusals = refusals + 1 if all([await _refuses(host, port) for host, _, port in addresses]) else 0
    limit.reschedule(asyncio.get_running_loop().time())


async def _refuses(host: str, port: str) -> bool:
    """Whether each address of that name says so. No answer at all is waited for."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_KNOCK_S):
            found = await loop.getaddrinfo(host.strip().strip("[]"), port, type=socket.SOCK_STREAM)
            return all([await _refuses_at(*place[:2]) for *_, place in found])
    except OSError:
        return False


async def _refuses_at(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def read_topic(
    running: RunningFleet, topic: str, partitions: int = 1, start: StartAt = _BEGINNING
) -> AsyncIterator[InRecord]:
    """All records of a topic from `start` on, in the order of their partitions' logs. Raises BusError."""
    reader = KafkaLogReader(
        running.bootstrap_servers,
        running.traits,
        topic=topic,
        partitions=range(partitions),
        client_id="chimera-cli",
        fetch_max_wait_ms=running.traits.fetch_max_wait_ms["control"],
    )
    try:
        async with answering(running):
            await reader.start(at=start)
        while not reader.caught_up():
            async with answering(running):
                records = await _next(reader)
            for record in records:
                yield record
    finally:
        await reader.stop()


async def _next(reader: KafkaLogReader) -> list[InRecord]:
    records: list[InRecord] = []
    while not records and not reader.caught_up():
        records = await reader.poll(timeout_ms=_POLL_MS, max_records=1_000)
    return records


async def read_fleet(running: RunningFleet) -> FleetTable:
    """The table of `fleet` as of now, on the wall clock of the broker's record times. Raises BusError."""
    table = FleetTable(stalled_after_s=stall_bounds(running.fleet))
    async for record in read_topic(running, running.names.fleet):
        if record.key is None:
            continue
        try:
            message = None if record.value is None else decode_fleet(to_text(record.headers), record.value)
        except SchemaError:
            continue
        if not isinstance(message, Unknown):
            table.apply(record.key.decode("utf-8", "replace"), message, record.timestamp_ms / 1000)
    table.forget(time.time())
    return table


async def committed_offsets(running: RunningFleet, group: str, topic: str) -> dict[int, int]:
    """The next offset of each partition by what the group committed. Raises BusError."""
    place = GroupTopic(running.bootstrap_servers, running.traits, topic, group, "chimera-cli")
    try:
        found = await committed(place, range(running.fleet.partitions), _ADMIN_TIMEOUT_S)
    except LIBRARY_FAULTS as fault:
        raise bus_error(f"offsets of {group}", fault) from fault
    return {partition: offset for partition, (offset, _) in found.items()}


async def undone(running: RunningFleet, group: str, topic: str) -> int:
    """How many offsets of a topic its group has not committed. Raises BusError."""
    done = await committed_offsets(running, group, topic)
    ends = await end_offsets(
        running.bootstrap_servers,
        running.traits,
        topic=topic,
        partitions=range(running.fleet.partitions),
        client_id="chimera-cli",
        timeout_s=_ADMIN_TIMEOUT_S,
    )
    return sum(max(0, end - max(0, done.get(partition, 0))) for partition, end in ends.items())


@asynccontextmanager
async def publisher_of(running: RunningFleet) -> AsyncIterator[KafkaPublisher]:
    publisher = KafkaPublisher(running.bootstrap_servers, running.traits, client_id="chimera-cli")
    try:
        async with answering(running):
            await publisher.start()
        yield publisher
    finally:
        await publisher.stop()
