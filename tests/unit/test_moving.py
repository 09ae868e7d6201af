"""What a worker remembers of the tasks that it moved."""

from __future__ import annotations

from pathlib import Path

from schemas.fleet_messages import WorkerBeat
from schemas.topics import TopicNames
from services.adapters.journal import DirectoryJournal
from services.adapters.wall_clock import WallClock
from services.core.fleet import Fleet, Pool
from services.core.fleet_table import FleetTable
from services.core.reroute import Move
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_view import FleetView
from services.worker_pools.moving import MOST_WORKERS, Moving
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeLogReader

NAMES = TopicNames("t.")


def test_moves_to_workers_that_left_are_forgotten_and_those_to_one_that_lives_count(tmp_path: Path) -> None:
    bus, now_s = FakeBus({NAMES.fleet: 1, NAMES.results: 1}), [0.0]
    fleet = Fleet(pools=(Pool(name="p", model="m", slots=4),), prefix=NAMES.prefix, partitions=1)
    view = FleetView(FakeLogReader(bus, topic=NAMES.fleet, partitions=[0]), FleetTable(), lambda: now_s[0])
    reports = Reports(FakePublisher(bus), NAMES, "me", WallClock(), WorkerKnobs(), DirectoryJournal(tmp_path))
    moving = Moving(CurrentFleet(fleet), view, reports)
    lives = WorkerBeat(sent_ms=0, worker="lives", pool="p", state="ready", slots=4, in_flight=0)
    view.table.apply(lives.key, lives, 0.0)
    now_s[0] = 0.5
    moving.chosen(Move("lane", 0, "p", "lives"))
    for number in range(10 * MOST_WORKERS):
        moving.chosen(Move("lane", 0, "p", f"left-{number}"))
    assert [station.free for station in moving.snapshot().stations] == [3]
    assert len(moving._sent_s) <= MOST_WORKERS + 1
