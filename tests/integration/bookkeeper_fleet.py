"""Bookkeepers between an in-memory bus and a real database: what a test says to them and sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select

from schemas.codec import decode, encode, message_headers
from schemas.fleet_messages import WorkerBeat
from schemas.headers import to_text
from schemas.messages import Message
from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.core.fleet_table import FleetTable
from services.core.life.errands import LogBatch
from services.core.life.rows import Effect, LifeLimits
from services.orchestrator.bookkeeper import Bookkeeper
from services.orchestrator.settings import BookkeeperKnobs
from services.ports import BookkeeperStore, Commit, OutRecord
from services.runtime.fleet_view import FleetView
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource, FakeLogReader

NAMES = TopicNames("t.")
LANE = "t.tasks.chat-fast.interactive"
KNOBS = BookkeeperKnobs(
    poll_ms=20,
    gather_s=0.01,
    retry_s=0.02,
    retry_most_s=0.1,
    sweep_every_s=0.02,
    ack_timeout_s=1.0,
    lost_every_s=0.02,
    unheard_grace_s=0.6,
    bury_every_s=0.05,
)
DEAD_AFTER_S = 1.5  # more than a busy loop may keep a beat waiting
STALLS = {"chat-fast": 20.0}  # seconds without a token, by pool
STAMP_MS = 1_000  # of the first record on the bus; each next one is a millisecond later


@dataclass
class Fleet:
    """A bus with the fleet's topics, a database, and the bookkeepers that a test starts and kills."""

    bus: FakeBus
    database: Database
    publisher: FakePublisher
    blobs: DirectoryBlobStore
    steady_s: list[float] = field(default_factory=lambda: [0.0])
    _views: list[asyncio.Task[None]] = field(default_factory=list)
    _running: list[tuple[FakeGroupSource, asyncio.Task[None], asyncio.Event]] = field(default_factory=list)

    async def say(self, *messages: Message, partition: int = 0) -> None:
        for message in messages:
            headers = message_headers(message, request_id=f"r-{message.task_id}")
            await self.put(message.task_id.encode(), encode(message), headers, partition)

    async def put(
        self, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]], partition: int = 0
    ) -> None:
        await self.publisher.send(OutRecord(NAMES.results, key, value, headers, partition), timeout_s=1)

    def start(
        self,
        store: BookkeeperStore | None = None,
        knobs: BookkeeperKnobs = KNOBS,
        reads_with: type[FakeGroupSource] = FakeGroupSource,
    ) -> Bookkeeper:
        source = reads_with(self.bus, topic=NAMES.results, group=NAMES.bookkeeper_group)
        reader = FakeLogReader(self.bus, topic=NAMES.fleet, partitions=[0])
        view = FleetView(reader, FleetTable(dead_after_s=DEAD_AFTER_S, stalled_after_s=STALLS), self.now_s)
        bookkeeper = Bookkeeper(
            source,
            self.publisher,
            store or self.store(),
            NAMES,
            knobs,
            blobs=self.blobs,
            steady=self.now_s,
            wall_ms=lambda: STAMP_MS,
            view=view,
        )
        self._views.append(asyncio.create_task(view.run()))
        stop = asyncio.Event()
        self._running.append((source, asyncio.create_task(bookkeeper.run(stop)), stop))
        return bookkeeper

    def now_s(self) -> float:
        return self.steady_s[0] + asyncio.get_running_loop().time()

    async def beat(self, worker: str, *, quiet_s: float = 0.0) -> None:
        beat = WorkerBeat(
            sent_ms=0, worker=worker, pool="chat-fast", state="ready", slots=4, in_flight=1, quiet_s=quiet_s
        )
        record = OutRecord(NAMES.fleet, beat.key.encode(), encode(beat), message_headers(beat))
        await self.publisher.send(record, timeout_s=1)

    def store(self) -> SqlBookkeeperStore:
        return SqlBookkeeperStore(self.database, LifeLimits(max_tries=3))

    async def kill(self) -> None:
        """The oldest bookkeeper dies without a word."""
        source, task, _ = self._running.pop(0)
        task.cancel()
        await asyncio.wait({task})
        await self.bus.kill(source)

    async def stop(self) -> None:
        for _, _, stop in self._running:
            stop.set()
        for _, task, _ in self._running:
            await task
        self._running.clear()
        for viewing in self._views:
            viewing.cancel()
        await asyncio.gather(*self._views, return_exceptions=True)
        self._views.clear()

    async def rows(self, table: Table) -> dict[str, Any]:
        async with self.database.reading() as connection:
            return {row[0]: row for row in await connection.execute(select(table))}

    def lag(self) -> int:
        commits = self.bus.commits(NAMES.bookkeeper_group)
        ends = {record.partition: record.offset + 1 for record in self.bus.records(NAMES.results)}
        return sum(end - commits.get(p, Commit(0)).offset for p, end in ends.items())

    def sent(self, topic: str) -> list[Message]:
        found = [decode(to_text(record.headers), record.value) for record in self.bus.records(topic)]
        return [message for message in found if isinstance(message, Message)]


async def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


async def until_row(fleet: Fleet, table: Table, key: str, state: str, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while getattr((await fleet.rows(table)).get(key), "state", None) != state:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fleet_on(url: str, blobs: Path, *, timeout_s: float = 5.0) -> AsyncIterator[Fleet]:
    topics = {NAMES.results: 2, NAMES.control: 1, NAMES.dead: 1, NAMES.fleet: 1, LANE: 2}
    bus = FakeBus(topics, first_timestamp_ms=STAMP_MS)
    await migrate(url)
    database, publisher = Database(url, timeout_s=timeout_s), FakePublisher(bus)
    await publisher.start()
    fleet = Fleet(bus, database, publisher, DirectoryBlobStore(blobs))
    try:
        yield fleet
    finally:
        bus.thaw()
        await fleet.stop()
        await publisher.stop()
        await database.close()


class DiesAfter:
    """A store whose transaction goes through, and whose caller never hears of it."""

    def __init__(self, store: SqlBookkeeperStore) -> None:
        self._store = store
        self.done = asyncio.Event()

    async def apply(self, batch: LogBatch) -> tuple[Effect, ...]:
        effects = tuple(await self._store.apply(batch))
        if batch.entries:
            self.done.set()
            await asyncio.Event().wait()
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
