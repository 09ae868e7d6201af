"""A row takes over from a lane record only while the try that it names still runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from schemas.failures import FailureKind
from schemas.headers import TaskHeaders
from schemas.messages import Failure, Timing, Try, Usage
from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.journal import DirectoryJournal
from services.adapters.wall_clock import WallClock
from services.core.fleet import DEFAULT_WEIGHTS
from services.core.reroute import Move
from services.core.retry import RetryPolicy
from services.runtime.group_offsets import Place
from services.worker_pools.backlog import Backlog
from services.worker_pools.desk import Desk
from services.worker_pools.endings import Endings
from services.worker_pools.handover import HandOver
from services.worker_pools.held import Held, Phase, Position
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.tries import TryEnd
from tests.fakes.bus import FakeBus, FakePublisher

NAMES = TopicNames("t.")
PLACE = Position("interactive", Place(0, 7, 1))


class Tried:
    """A task whose first try runs, and the places that are done."""

    def __init__(self, tmp_path: Path) -> None:
        self.bus = FakeBus({NAMES.results: 1})
        self.publisher = FakePublisher(self.bus)
        clock, knobs, self.done = WallClock(), WorkerKnobs(), list[Position]()
        desk = Desk(Backlog(DEFAULT_WEIGHTS, 10, 1_000_000), clock, self.done.append)
        headers = TaskHeaders("req", int(time.time() * 1000) + 60_000, 0)
        self.held = Held(
            "task", "interactive", "lane", headers, (), b"{}", 0, redelivered=False, origin=(0, 7)
        )
        desk.take(self.held, PLACE)
        desk.backlog.remove(self.held)
        self.held.phase, self.held.attempt = Phase.TRYING, "first"
        reports = Reports(
            self.publisher, NAMES, "worker", clock, knobs, DirectoryJournal(tmp_path / "journal")
        )
        blobs = DirectoryBlobStore(tmp_path)
        self.hand_over = HandOver(desk, reports, blobs, clock, knobs)
        self.endings = Endings(desk, reports, blobs, clock, lambda: 0.5, RetryPolicy())

    async def lending(self) -> asyncio.Task[None]:
        """Under way: nothing is acknowledged before the bus thaws."""
        await self.publisher.start()
        self.bus.freeze()
        lending = asyncio.create_task(self.hand_over.lend(self.held, 5.0))
        await asyncio.sleep(0)
        return lending


async def lent_while(tmp_path: Path, after: str | None, phase: Phase) -> tuple[Held, list[Position]]:
    """A task whose try was lent, and the places done, where it had come to `after` by the acknowledgement."""
    tried = Tried(tmp_path)
    lending = await tried.lending()
    tried.held.attempt, tried.held.phase = after, phase
    tried.bus.thaw()
    await lending
    return tried.held, tried.done


async def test_a_try_that_runs_is_held_by_its_row(tmp_path: Path) -> None:
    held, done = await lent_while(tmp_path, "first", Phase.TRYING)
    assert held.lent
    assert done == [PLACE]


async def test_a_task_that_waits_for_its_next_try_is_still_held_by_its_lane_record(tmp_path: Path) -> None:
    held, done = await lent_while(tmp_path, "first", Phase.QUEUED)
    assert not held.lent
    assert (held.positions, done) == ([PLACE], [])


async def test_the_next_try_is_not_held_by_the_row_of_the_last(tmp_path: Path) -> None:
    held, done = await lent_while(tmp_path, "second", Phase.TRYING)
    assert not held.lent
    assert (held.positions, done) == ([PLACE], [])


async def test_a_task_that_moves_is_held_by_its_lane_record_until_the_other_lane_has_it(
    tmp_path: Path,
) -> None:
    """The end of its try closes the row that it was lent to: nobody would hold it between the two."""
    tried, moved = Tried(tmp_path), asyncio.Event()
    lending = await tried.lending()

    async def send(_held: Held, _move: Move) -> None:
        await moved.wait()

    tried.endings.elsewhere = lambda _: (Move("other", 0, "spare", "b1"), send)
    tried.held.phase = Phase.SETTLING
    run = Try(attempt="first", worker="worker", pool="p", model="m", started_ms=0)
    refused = Failure(kind=FailureKind.RATE_LIMITED, message="not now")
    end = TryEnd(run, 0, Usage(), Timing(), None, refused)
    settling = asyncio.create_task(tried.endings.settle(tried.held, "chat", False, end))
    await asyncio.sleep(0)
    tried.bus.thaw()
    await lending
    assert (tried.held.lent, tried.done) == (False, [])
    moved.set()
    await settling
    assert tried.done == [PLACE]
