"""A row takes over from a lane record only while the try that it names still runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from schemas.headers import TaskHeaders
from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.wall_clock import WallClock
from services.core.fleet import DEFAULT_WEIGHTS
from services.runtime.group_offsets import Place
from services.worker_pools.backlog import Backlog
from services.worker_pools.desk import Desk
from services.worker_pools.handover import HandOver
from services.worker_pools.held import Held, Phase, Position
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs
from tests.fakes.bus import FakeBus, FakePublisher

NAMES = TopicNames("t.")
PLACE = Position("interactive", Place(0, 7, 1))


async def lent_while(tmp_path: Path, after: str | None, phase: Phase) -> tuple[Held, list[Position]]:
    """A task whose try was lent, and the places done, where it had come to `after` by the acknowledgement."""
    bus = FakeBus({NAMES.results: 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    clock, knobs, done = WallClock(), WorkerKnobs(), list[Position]()
    desk = Desk(Backlog(DEFAULT_WEIGHTS, 10, 1_000_000), clock, done.append)
    headers = TaskHeaders("req", int(time.time() * 1000) + 60_000, 0)
    held = Held("task", "interactive", "lane", headers, (), b"{}", 0, redelivered=False, origin=(0, 7))
    desk.take(held, PLACE)
    desk.backlog.remove(held)
    held.phase, held.attempt = Phase.TRYING, "first"
    reports, blobs = Reports(publisher, NAMES, "worker", clock, knobs), DirectoryBlobStore(tmp_path)
    hand_over = HandOver(desk, reports, blobs, clock, knobs)
    bus.freeze()
    lending = asyncio.create_task(hand_over.lend(held, 5.0))
    await asyncio.sleep(0)
    held.attempt, held.phase = after, phase
    bus.thaw()
    await lending
    return held, done


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
