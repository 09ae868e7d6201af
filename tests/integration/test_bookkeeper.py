"""The bookkeeper between a bus and a database: nothing lost, nothing twice, whatever dies in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import pytest_asyncio
from sqlalchemy import Table, select

from infra.postgres import PostgresServer
from schemas.codec import decode, encode, message_headers
from schemas.headers import to_text
from schemas.messages import CancelTask, Message, TaskClosed
from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database import tables
from services.adapters.database.engine import Database
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.core.life.errands import LogBatch, TakenTask
from services.core.life.rows import Effect, LifeLimits
from services.orchestrator.bookkeeper import Bookkeeper
from services.orchestrator.settings import BookkeeperKnobs
from services.ports import BookkeeperStore, Commit, InRecord, OutRecord
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource
from tests.life_records import envelope_of, failed, parked, started, succeeded

NAMES = TopicNames("t.")
LANE = "t.tasks.chat-fast.interactive"
KNOBS = BookkeeperKnobs(
    poll_ms=20, gather_s=0.01, retry_s=0.02, retry_most_s=0.1, sweep_every_s=0.02, ack_timeout_s=1.0
)
STAMP_MS = 1_000  # of the first record on the bus; each next one is a millisecond later


@dataclass
class Fleet:
    """A bus with the fleet's topics, a database, and the bookkeepers that a test starts and kills."""

    bus: FakeBus
    database: Database
    publisher: FakePublisher
    blobs: DirectoryBlobStore
    steady_s: list[float] = field(default_factory=lambda: [0.0])
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
        bookkeeper = Bookkeeper(
            source,
            self.publisher,
            store or self.store(),
            NAMES,
            knobs,
            blobs=self.blobs,
            steady=lambda: self.steady_s[0] + asyncio.get_running_loop().time(),
            wall_ms=lambda: STAMP_MS,
        )
        stop = asyncio.Event()
        self._running.append((source, asyncio.create_task(bookkeeper.run(stop)), stop))
        return bookkeeper

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
    bus = FakeBus({NAMES.results: 2, NAMES.control: 1, NAMES.dead: 1, LANE: 2}, first_timestamp_ms=STAMP_MS)
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


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "chimera.db"


@pytest_asyncio.fixture
async def fleet(sqlite_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(
        f"sqlite+aiosqlite:///{sqlite_path}", sqlite_path.parent / "blobs", timeout_s=1.0
    ) as fleet:
        yield fleet


async def test_results_become_rows_and_offsets_are_committed(fleet: Fleet) -> None:
    fleet.start()
    for number in range(50):
        await fleet.say(
            started(f"t{number}", f"a{number}"), succeeded(f"t{number}", f"a{number}"), partition=number % 2
        )
    await until(lambda: fleet.lag() == 0)
    ledger = await fleet.rows(tables.ledger)
    assert {row.verdict for row in ledger.values()} == {"outcome"}
    assert len(ledger) == len(await fleet.rows(tables.tasks)) == 50
    assert (await fleet.rows(tables.tasks))["t7"].request_id == "r-t7"


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


async def test_killed_between_transaction_and_commit_the_next_one_reads_again_to_the_same_rows(
    fleet: Fleet,
) -> None:
    await fleet.say(
        started("t", "a1"),
        failed("t", "a1", "parked", due_ms=10**9),
        started("u", "b1"),
        started("u", "b2", redelivered=True),
        succeeded("v", "c1", keep_answer=True),
    )
    dying = DiesAfter(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    before = {table.name: await fleet.rows(table) for table in tables.metadata.sorted_tables}
    await fleet.kill()
    assert fleet.lag() == 5
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert {table.name: await fleet.rows(table) for table in tables.metadata.sorted_tables} == before
    assert {name: row.state for name, row in before["ledger"].items()} == {
        "a1": "ended", "b1": "lost", "b2": "open", "c1": "ended",
    }  # fmt: skip


async def test_what_is_owed_to_the_bus_survives_a_kill_after_the_transaction(fleet: Fleet) -> None:
    await fleet.say(*(started("t", f"a{number}", redelivered=True) for number in range(5)))
    dying = DiesAfter(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    await fleet.kill()
    assert fleet.sent(NAMES.control) == []
    fleet.start()
    await until(lambda: bool(fleet.sent(NAMES.control)))
    await until_row(fleet, tables.tasks, "t", "closed")
    [cancel] = fleet.sent(NAMES.control)
    assert isinstance(cancel, CancelTask)
    assert (cancel.task_id, cancel.reason) == ("t", "poison")
    assert (await fleet.rows(tables.tasks))["t"].reason == "poison"


async def test_a_parked_retry_goes_to_its_lane_once_untouched_when_it_is_due(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(started("t", "a1"), failed("t", "a1", "parked", due_ms=STAMP_MS + 60_000))
    await until(lambda: fleet.lag() == 0)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == [], "not due by the time of the log"
    fleet.steady_s[0] += 61  # the log is silent for a minute
    await until(lambda: len(fleet.bus.records(LANE)) == 1)
    [lane_record] = fleet.bus.records(LANE)
    envelope = envelope_of("t", '{"by":"a1"}')
    assert (lane_record.key, lane_record.value) == (b"t", envelope.value.encode())
    assert to_text(lane_record.headers) == envelope.headers | {"swept": "1"}
    await until_row(fleet, tables.parked, "t", "swept")
    fleet.steady_s[0] += 600
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert len(fleet.bus.records(LANE)) == 1
    await fleet.say(succeeded("t", "a2"))
    await until_row(fleet, tables.tasks, "t", "succeeded")
    assert await fleet.rows(tables.parked) == {}


async def test_a_sweep_that_died_before_its_mark_is_done_again_by_the_next_bookkeeper(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))

    class DiesBeforeMark(DiesAfter):
        async def apply(self, batch: LogBatch) -> tuple[Effect, ...]:
            return tuple(await self._store.apply(batch))

        async def mark_swept(self, taken: Sequence[TakenTask]) -> None:
            assert taken
            self.done.set()
            await asyncio.Event().wait()

    dying = DiesBeforeMark(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    await fleet.kill()
    assert len(fleet.bus.records(LANE)) == 1
    assert (await fleet.rows(tables.parked))["t"].state == "sweeping"
    fleet.start()
    await until_row(fleet, tables.parked, "t", "swept")
    assert len(fleet.bus.records(LANE)) == 2, "doubled, never lost"


async def test_a_lane_that_does_not_acknowledge_gets_its_task_at_the_next_sweep(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))
    fleet.start()
    fleet.bus.refuse_sends(3)
    await until_row(fleet, tables.parked, "t", "swept")
    assert len(fleet.bus.records(LANE)) == 1


async def test_a_holder_that_renews_keeps_its_task_and_one_that_falls_silent_loses_it(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS + 30_000))
    fleet.steady_s[0] += 25
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 60_000))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 10
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []
    fleet.steady_s[0] += 60
    await until(lambda: len(fleet.bus.records(LANE)) == 1)
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 300_000))
    await until(lambda: bool(fleet.sent(NAMES.control)))
    [cancel] = fleet.sent(NAMES.control)
    assert isinstance(cancel, CancelTask)
    assert cancel.attempt == "a1"


async def test_nothing_is_swept_before_all_that_was_there_has_been_read(fleet: Fleet) -> None:
    """The bookkeeper was away: the park is long due, but renewals that it has not read stand behind it."""
    slow = replace(KNOBS, poll_records=1, gather_s=0.0)
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS))
    await fleet.say(*(started(f"x{number}", f"x{number}") for number in range(150)))
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 10**6))
    fleet.start(knobs=slow)
    await until(lambda: fleet.lag() == 0, within_s=30)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []


class FallsSilent(FakeGroupSource):
    """Stops bringing records after the first poll that brought some, without a word."""

    silent = False

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        if self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        records = await super().poll(timeout_ms=timeout_ms, max_records=max_records, partitions=partitions)
        self.silent = bool(records)
        return records


async def test_a_reader_that_stopped_silently_sweeps_nothing(fleet: Fleet) -> None:
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS + 30_000))
    fleet.start(knobs=replace(KNOBS, proof_timeout_s=0.05), reads_with=FallsSilent)
    await until(lambda: fleet.lag() == 0)
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 10**6))  # never read here
    fleet.steady_s[0] += 60
    await until(lambda: sum(one.key == b"sweep" for one in fleet.bus.records(NAMES.results)) >= 3)
    assert fleet.bus.records(LANE) == []
    await fleet.kill()
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []


async def test_an_overdue_parked_task_is_closed_by_the_log(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(failed("t", "a1", "parked", due_ms=2_000_000))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 1_000
    await until_row(fleet, tables.tasks, "t", "closed")
    row = (await fleet.rows(tables.tasks))["t"]
    assert (row.reason, row.request_id) == ("deadline", "r-t")
    assert fleet.bus.records(LANE) == []
    closes = [message for message in fleet.sent(NAMES.results) if isinstance(message, TaskClosed)]
    assert [(close.reason, close.by) for close in closes] == [("deadline", "bookkeeper")]


async def test_a_try_nobody_heard_of_is_lost_a_minute_past_its_deadline(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(started("t", "a1"))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 1_030
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert (await fleet.rows(tables.ledger))["a1"].state == "open"
    fleet.steady_s[0] += 60
    await until_row(fleet, tables.ledger, "a1", "lost")
    await fleet.say(succeeded("t", "a1"))
    await until_row(fleet, tables.ledger, "a1", "ended")


async def test_r9_a_locked_database_holds_the_offsets_back_and_then_recovers(
    fleet: Fleet, sqlite_path: Path
) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: not bookkeeper.database_up)
        assert fleet.lag() == 1
        await blocker.execute("ROLLBACK")
    await until(lambda: fleet.lag() == 0)
    assert bookkeeper.database_up
    assert list(await fleet.rows(tables.tasks)) == ["t"]


async def test_r9_a_frozen_postgres_holds_the_offsets_back_and_then_recovers(tmp_path: Path) -> None:
    async with PostgresServer() as server, fleet_on(server.url, tmp_path, timeout_s=1.0) as fleet:
        bookkeeper = fleet.start()
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: fleet.lag() == 0)
        await server.freeze()
        try:
            await fleet.say(succeeded("u", "b1"))
            await until(lambda: not bookkeeper.database_up, within_s=30)
            assert fleet.lag() == 1
        finally:
            server.thaw()
        await until(lambda: fleet.lag() == 0, within_s=30)
        assert set(await fleet.rows(tables.tasks)) == {"t", "u"}


async def test_r9_a_database_that_is_gone_shows_without_any_record(fleet: Fleet, sqlite_path: Path) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    await fleet.say(started("t", "a1"))
    await until(lambda: fleet.lag() == 0)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await until(lambda: not bookkeeper.database_up)
        await blocker.execute("ROLLBACK")
    await until(lambda: bookkeeper.database_up)


async def test_stopping_while_the_database_is_away_leaves_the_offsets_and_the_rest_to_the_next(
    fleet: Fleet, sqlite_path: Path
) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: not bookkeeper.database_up)
        await asyncio.wait_for(fleet.stop(), 10)
        await blocker.execute("ROLLBACK")
    assert fleet.lag() == 1
    fleet.start()
    await until(lambda: fleet.lag() == 0)


async def test_bad_bytes_go_to_the_dead_with_their_origin_and_the_partition_moves_on(fleet: Fleet) -> None:
    await fleet.put(b"t", b"{not json", [("type", b"TaskSucceeded"), ("v", b"1")])
    await fleet.put(b"t", b"\xff", [])
    large = b"x" * (MAX_RECORD_BYTES - 200)  # with what a dead letter adds, no record can carry it
    await fleet.put(b"t", large, [])
    await fleet.say(succeeded("t", "a1"))
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    dead = fleet.bus.records(NAMES.dead)
    assert [record.value for record in dead[:2]] == [b"{not json", b"\xff"]
    assert [to_text(record.headers)["dead_origin_offset"] for record in dead] == ["0", "1", "2"]
    claim = Claim.model_validate_json(to_text(dead[2].headers)["dead_claim"])
    assert await fleet.blobs.get(claim.key, claim.sha256) == large
    assert "TaskSucceeded" in to_text(dead[0].headers)["dead_reason"]
    assert list(await fleet.rows(tables.tasks)) == ["t"]


async def test_values_that_the_database_refuses_go_to_the_dead_and_hold_up_nobody(fleet: Fleet) -> None:
    for number in range(7):
        message = succeeded(f"t{number}", f"a{number}")
        if number == 4:
            run = message.run.model_copy(update={"started_ms": 2**63})
            message = message.model_copy(update={"run": run})
        await fleet.say(message)
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert set(await fleet.rows(tables.tasks)) == {"t0", "t1", "t2", "t3", "t5", "t6"}
    [dead] = fleet.bus.records(NAMES.dead)
    assert dead.key == b"t4"


async def test_q3_a_record_that_cannot_be_folded_goes_to_the_dead_and_does_not_end_the_bookkeeper(
    fleet: Fleet,
) -> None:
    deep = b"[" * 400 + b"]" * 400  # is read, and is more than can be written
    nested = encode(succeeded("deep", "a1", keep_answer=True)).replace(b'{"by":"a1"}', deep)
    await fleet.say(succeeded("before", "a0"))
    await fleet.put(b"deep", nested, [("type", b"TaskSucceeded"), ("v", b"1")])
    await fleet.say(succeeded("after", "a2"))
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert set(await fleet.rows(tables.tasks)) == {"before", "after"}
    [dead] = fleet.bus.records(NAMES.dead)
    assert dead.value == nested
    assert "bookkeeper failed" in to_text(dead.headers)["dead_reason"]


async def test_records_of_the_future_are_kept_and_applied_by_the_version_that_knows_them(
    fleet: Fleet,
) -> None:
    future = [("type", b"TaskSucceeded"), ("v", b"2"), ("request_id", b"r-t")]
    await fleet.put(b"t", b'{"shape":"of tomorrow"}', future)
    await fleet.put(b"t", b'{"shape":"of tomorrow"}', future)
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    [kept] = (await fleet.rows(tables.kept)).values()
    assert (kept.type, kept.major, kept.value) == ("TaskSucceeded", "2", b'{"shape":"of tomorrow"}')
    await fleet.stop()

    async with fleet.database.writing() as connection:  # the upgrade: what it kept is readable now
        known = encode(succeeded("t", "a1"))
        headers = kept.headers.replace("Mg==", "MQ==")
        await connection.execute(tables.kept.update().values(value=known, headers=headers))
    fleet.start()
    await until_row(fleet, tables.tasks, "t", "succeeded")
    async with asyncio.timeout(10):
        while await fleet.rows(tables.kept):
            await asyncio.sleep(0.01)
    assert (await fleet.rows(tables.tasks))["t"].request_id == "r-t"


async def test_two_bookkeepers_and_a_rebalance_at_every_step_write_the_rows_of_one(fleet: Fleet) -> None:
    both = [fleet.start(knobs=replace(KNOBS, poll_records=most)) for most in (7, 5)]
    await until(lambda: all(bookkeeper.joined for bookkeeper in both))
    count = itertools.count()
    for number in range(60):
        task, partition = f"t{number}", number % 2
        await fleet.say(
            started(task, f"{task}-a"),
            failed(task, f"{task}-a", "local"),
            succeeded(task, f"{task}-b"),
            partition=partition,
        )
        if next(count) % 6 == 0:
            await fleet.bus.rebalance(NAMES.bookkeeper_group)
    await fleet.kill()
    await until(lambda: fleet.lag() == 0)
    ledger = await fleet.rows(tables.ledger)
    verdicts: Mapping[str, set[str]] = {
        kind: {row.verdict for name, row in ledger.items() if name.endswith(kind)} for kind in ("-a", "-b")
    }
    assert verdicts == {"-a": {"failed"}, "-b": {"outcome"}}
    assert len(ledger) == 120
    assert len(await fleet.rows(tables.tasks)) == 60


async def test_marks_of_sweeps_are_about_no_task(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))
    fleet.start()
    await until_row(fleet, tables.parked, "t", "swept")
    marks: list[InRecord] = [one for one in fleet.bus.records(NAMES.results) if one.key == b"sweep"]
    assert marks
    assert await fleet.rows(tables.kept) == {}
    assert fleet.bus.records(NAMES.dead) == []
