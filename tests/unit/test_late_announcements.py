"""A try that is announced for a worker that is gone is the ledger's: no stream follows it."""

from __future__ import annotations

from pathlib import Path

from schemas.codec import encode, message_headers
from schemas.headers import LATE
from schemas.messages import AttemptStarted, Try
from schemas.topics import TopicNames
from services.adapters.journal import DirectoryJournal
from services.adapters.wall_clock import WallClock
from services.ingress.inbox import Listener, _hand_over
from services.ports import OutRecord
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs
from tests.fakes.bus import FakeBus, FakePublisher
from tests.unit.test_journal import killed_after_keeping

NAMES = TopicNames("t.")


def started() -> AttemptStarted:
    run = Try(attempt="a1", worker="gone", pool="p", model="m", started_ms=1)
    return AttemptStarted(task_id="t1", run=run, deadline_ms=2)


async def reports(bus: FakeBus, journal: Path) -> Reports:
    publisher = FakePublisher(bus)
    await publisher.start()
    return Reports(publisher, NAMES, "me", WallClock(), WorkerKnobs(), DirectoryJournal(journal))


async def test_no_stream_hears_of_it_and_the_log_does(tmp_path: Path) -> None:
    bus, message = FakeBus({NAMES.results: 2}), started()
    dead = DirectoryJournal(tmp_path)
    dead.keep("a1", OutRecord(NAMES.results, b"t1", encode(message), message_headers(message), 1))
    (kept,) = tmp_path.iterdir()
    kept.with_name("of-the-dead.records").write_bytes(kept.read_bytes())
    living = await reports(bus, tmp_path)
    await living.say_left_behind(2)
    (record,) = bus.records(NAMES.results)
    assert dict(record.headers)[LATE] == b"1"
    listener = Listener(streaming=True)
    _hand_over(record, listener)
    assert not listener.news
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]  # of one that lives


async def test_what_is_of_another_fleet_or_partition_is_left_out(tmp_path: Path) -> None:
    killed_after_keeping(tmp_path)  # records for partition 3 of "results"
    bus = FakeBus({NAMES.results: 2})
    await (await reports(bus, tmp_path)).say_left_behind(2)
    assert bus.records(NAMES.results) == []
    assert list(tmp_path.iterdir()) == []
