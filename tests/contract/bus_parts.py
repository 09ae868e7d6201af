"""What the bus contract is run on: publishers, sources and readers of one kind, stopped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from services.adapters.kafka.consumers import cut_off
from services.adapters.kafka.group_source import GroupTimings, KafkaGroupSource
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.adapters.kafka.traits import BrokerTraits
from services.ports import Assigned, BusError, GroupSource, InRecord, LogReader, OutRecord, Publisher
from tests.broker_under_test import BrokerUnderTest
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource, FakeLogReader

# Ten times what any of it takes: a bound for a hanging test, no promise.
PATIENCE_S = 60.0


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


@dataclass
class Calls:
    """An AssignmentListener that remembers what it was told, in order, and what it owns."""

    told: list[tuple[str, frozenset[int]]] = field(default_factory=list)
    owned: dict[int, Assigned] = field(default_factory=dict)
    on_revoked: Callable[[Collection[int]], Awaitable[None]] | None = None

    async def revoked(self, partitions: Collection[int]) -> None:
        if self.on_revoked is not None:
            await self.on_revoked(partitions)
        self.told.append(("revoked", frozenset(partitions)))
        self.owned = {}

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self.told.append(("assigned", frozenset(partitions)))
        self.owned = dict(partitions)


class BusParts:
    """Builds and starts parts on one bus. `keeps_metadata`, `knows_times`: what the bus promises."""

    keeps_metadata: bool
    knows_times: bool

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._parts: list[_Stoppable] = []

    def named(self, name: str) -> str:
        return self._prefix + name

    async def topic(self, partitions: int) -> str:
        raise NotImplementedError

    def new_publisher(self) -> Publisher:
        raise NotImplementedError

    def new_source(self, topic: str, group: str) -> GroupSource:
        raise NotImplementedError

    def new_reader(self, topic: str, partitions: Collection[int]) -> LogReader:
        raise NotImplementedError

    async def kill(self, source: GroupSource) -> None:
        """As SIGKILL: the member is gone without a word."""
        raise NotImplementedError

    async def silence(self, source: GroupSource) -> None:
        """As a process that hangs: the broker hears no heartbeat, the member knows of nothing."""
        raise NotImplementedError

    async def publisher(self) -> Publisher:
        publisher = self.new_publisher()
        self.stop_later(publisher)
        await publisher.start()
        return publisher

    async def source(self, topic: str, calls: Calls, group: str = "g") -> GroupSource:
        source = self.new_source(topic, self.named(group))
        self.stop_later(source)
        await source.start(calls)
        return source

    def stop_later(self, part: _Stoppable) -> None:
        self._parts.append(part)

    async def stop(self) -> None:
        await asyncio.gather(*(part.stop() for part in self._parts))


class FakeParts(BusParts):
    keeps_metadata = True
    knows_times = True

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.bus = FakeBus()

    async def topic(self, partitions: int) -> str:
        self.bus.create_topic(self.named("topic"), partitions)
        return self.named("topic")

    def new_publisher(self) -> Publisher:
        return FakePublisher(self.bus)

    def new_source(self, topic: str, group: str) -> GroupSource:
        return FakeGroupSource(self.bus, topic=topic, group=group)

    def new_reader(self, topic: str, partitions: Collection[int]) -> LogReader:
        return FakeLogReader(self.bus, topic=topic, partitions=partitions)

    async def kill(self, source: GroupSource) -> None:
        assert isinstance(source, FakeGroupSource)
        await self.bus.kill(source)

    async def silence(self, source: GroupSource) -> None:
        await self.kill(source)


class KafkaParts(BusParts):
    def __init__(self, prefix: str, broker: BrokerUnderTest, *, stall_s: float = 30.0) -> None:
        super().__init__(prefix)
        self._bootstrap_servers = broker.bootstrap_servers
        self.traits: BrokerTraits = broker.traits
        self._stall_s = stall_s
        self.keeps_metadata = broker.traits.commit_metadata_bytes > 0
        self.knows_times = broker.traits.offsets_for_times

    async def topic(self, partitions: int) -> str:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self.named("topic"), partitions, 1)])
        finally:
            await admin.close()
        return self.named("topic")

    def new_publisher(self) -> KafkaPublisher:
        return KafkaPublisher(self._bootstrap_servers, self.traits, client_id="publisher", stop_flush_s=1.0)

    def new_source(self, topic: str, group: str) -> KafkaGroupSource:
        return KafkaGroupSource(
            self._bootstrap_servers,
            self.traits,
            topic=topic,
            group=group,
            client_id="source",
            fetch_max_wait_ms=20,
            timings=GroupTimings(stall_s=self._stall_s),
        )

    def new_reader(self, topic: str, partitions: Collection[int]) -> KafkaLogReader:
        return KafkaLogReader(
            self._bootstrap_servers,
            self.traits,
            topic=topic,
            partitions=partitions,
            client_id="reader",
            fetch_max_wait_ms=20,
            stall_s=self._stall_s,
        )

    async def kill(self, source: GroupSource) -> None:
        assert isinstance(source, KafkaGroupSource)
        await source._watchdog.stop()  # it would bring the member back
        await cut_off(source._consumer)

    async def silence(self, source: GroupSource) -> None:
        assert isinstance(source, KafkaGroupSource)

        async def unheard() -> bool:
            return True

        source._consumer._coordinator._do_heartbeat = unheard


def values(topic: str, partition: int, count: int, first: int = 0) -> list[OutRecord]:
    """Records b"0", b"1", ... for one partition."""
    return [
        OutRecord(topic, None, str(number).encode(), partition=partition)
        for number in range(first, first + count)
    ]


async def send_all(publisher: Publisher, records: Iterable[OutRecord]) -> None:
    """Post in order, then wait for every acknowledgement."""
    for ack in [await publisher.post(record) for record in records]:
        await ack


async def read(part: GroupSource | LogReader, count: int) -> list[InRecord]:
    """The next `count` records, and what the last poll brought on top; TimeoutError after PATIENCE_S."""
    records: list[InRecord] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await part.poll(timeout_ms=200, max_records=1000)
    return records


async def nothing_more(part: GroupSource | LogReader) -> bool:
    """True when three more polls bring nothing."""
    return not [r for _ in range(3) for r in await part.poll(timeout_ms=100, max_records=1000)]


async def until(holds: Callable[[], bool], *polled: GroupSource) -> None:
    """Wait until `holds`, polling meanwhile as a worker does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            for source in polled:
                await source.poll(timeout_ms=20, max_records=1)
            await asyncio.sleep(0.02)


def offsets(records: Iterable[InRecord], partition: int) -> list[int]:
    return [record.offset for record in records if record.partition == partition]


async def acknowledged(publisher: Publisher, record: OutRecord) -> None:
    """Send until the broker acknowledges it, as whoever must not lose a record does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await publisher.send(record, timeout_s=5)
            except BusError:
                await asyncio.sleep(0.1)
            else:
                return


async def poll(part: GroupSource | LogReader) -> list[InRecord]:
    """A poll as a service makes it: a fault is met by polling again."""
    try:
        return await part.poll(timeout_ms=200, max_records=1000)
    except BusError:
        return []
