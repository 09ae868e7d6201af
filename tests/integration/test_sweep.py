"""What a sweep makes due, by which time, and how it puts a task back on its lane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas.headers import to_text
from schemas.messages import Message
from schemas.topics import TopicNames
from services.adapters.database.engine import Database
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.core.life.errands import LogBatch
from services.core.life.rows import LifeLimits, LogEntry
from services.orchestrator.owed import Owed
from services.orchestrator.settings import BookkeeperKnobs
from services.orchestrator.sweep import Sweep
from services.ports import InRecord
from tests.fakes.bus import FakeBus, FakePublisher
from tests.life_records import envelope_of, parked, started

NAMES = TopicNames("t.")
LANE = "t.tasks.chat-fast.interactive"
BEGAN_MS = 1_000


@dataclass
class Books:
    """A sweep, its log and its rows; its steady clock stands at `now_s` until a test moves it."""

    bus: FakeBus
    sweep: Sweep
    store: SqlBookkeeperStore
    clock_s: list[float] = field(default_factory=lambda: [0.0])

    async def read(self, *messages: Message, at_ms: int = BEGAN_MS) -> None:
        """Applied, and shown to the sweep, as records of that time."""
        await self.store.apply(LogBatch([LogEntry(0, at_ms, "r", message) for message in messages]))
        self.sweep.read([InRecord(NAMES.results, 0, 0, at_ms, b"task", b"", ())])

    def read_marks(self) -> None:
        self.sweep.read(self.bus.records(NAMES.results))

    def lane(self) -> list[InRecord]:
        return self.bus.records(LANE)


@pytest.fixture
async def books(tmp_path: Path) -> AsyncIterator[Books]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'books.db'}"
    await migrate(url)
    database = Database(url, timeout_s=5.0)
    bus = FakeBus({NAMES.results: 1, NAMES.control: 1, NAMES.dead: 1, LANE: 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    store, clock_s = SqlBookkeeperStore(database, LifeLimits()), [0.0]
    sweep = Sweep(
        store,
        publisher,
        Owed(NAMES),
        BookkeeperKnobs(),
        steady=lambda: clock_s[0],
        wall_ms=lambda: BEGAN_MS,
    )
    sweep.assigned([0])
    yield Books(bus, sweep, store, clock_s)
    await database.close()


async def test_what_became_due_while_the_mark_was_under_way_waits_for_the_next_sweep(books: Books) -> None:
    """Its holder may have renewed it behind the mark."""
    await books.read(
        started("due", "a1"),
        parked("due", "a1", due_ms=BEGAN_MS + 500),
        started("held", "b1"),
        parked("held", "b1", due_ms=BEGAN_MS + 5_000),
    )
    books.clock_s[0] = 2.0
    await books.sweep.turn()
    books.clock_s[0] = 8.0  # the mark took six seconds to come back
    books.read_marks()
    await books.sweep.turn()
    assert [record.key for record in books.lane()] == [b"due"]
    await books.read(parked("held", "b1", due_ms=BEGAN_MS + 30_000, renewal=True), at_ms=BEGAN_MS + 7_000)
    await books.sweep.turn()
    books.read_marks()
    await books.sweep.turn()
    assert [record.key for record in books.lane()] == [b"due"]


async def test_a_swept_record_says_so(books: Books) -> None:
    await books.read(started("task", "a1"), parked("task", "a1", due_ms=BEGAN_MS + 500))
    books.clock_s[0] = 2.0
    await books.sweep.turn()
    books.read_marks()
    await books.sweep.turn()
    (record,) = books.lane()
    envelope = envelope_of("task")
    assert to_text(record.headers) == dict(envelope.headers) | {"swept": "1"}
    assert record.value == envelope.value.encode()
