"""Heartbeats from a worker to a view over every bus: who is seen, who is dead, who is not after outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson
import pytest

from infra.process import free_port
from schemas.codec import SchemaError, decode_fleet, encode, message_headers
from schemas.fleet_messages import PoolOrder, WorkerBeat
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.traits import traits_of
from services.adapters.wall_clock import WallClock
from services.core.fleet import DEFAULT_WEIGHTS, Pool
from services.core.fleet_table import DEAD_AFTER_S, FleetTable
from services.ports import OutRecord, Publisher
from services.runtime.fleet_view import FleetView
from services.worker_pools.backlog import Backlog
from services.worker_pools.beats import Beats, Profile
from services.worker_pools.gate import Gate
from services.worker_pools.progress import Progress
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import PATIENCE_S, BusParts, FakeParts, KafkaParts

POOL = Pool(name="p", model="m", slots=3)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


def beats_of(worker: str, publisher: Publisher, topic: str) -> tuple[Beats, Gate]:
    gate, knobs = Gate("starting"), WorkerKnobs()
    progress = Progress(POOL.prior_seconds, time.monotonic)
    backlog = Backlog(DEFAULT_WEIGHTS, 100, 1 << 20)
    profile = Profile(worker, POOL.name, gate, SlotBudget(POOL), backlog, progress)
    profile.owns = lambda: {"t.tasks.p.interactive": (0, 2)}
    beats = Beats(profile, publisher, topic, WallClock(), knobs)
    gate.on_change = beats.changed
    return beats, gate


@asynccontextmanager
async def running(*loops: Beats | FleetView) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def view_of(parts: BusParts, topic: str) -> FleetView:
    return FleetView(parts.new_reader(topic, [0]), FleetTable(), time.monotonic)


async def put(publisher: Publisher, topic: str, message: WorkerBeat | PoolOrder) -> None:
    record = OutRecord(topic, message.key.encode(), encode(message), message_headers(message), 0)
    await publisher.send(record, timeout_s=PATIENCE_S)


async def test_a_worker_is_seen_changes_dies_and_leaves(bus: BusParts) -> None:
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    (stays, gate), (dies, _) = beats_of("stays", publisher, topic), beats_of("dies", publisher, topic)
    view = view_of(bus, topic)
    table = view.table
    async with running(view, stays):
        async with running(dies):
            await until(lambda: len(table.alive("p", view.now_s())) == 2)
            assert table.ready("p", view.now_s()) == [], "both are starting"
            gate.release("starting")
            await until(lambda: [b.worker for b in table.ready("p", view.now_s())] == ["stays"])
            owner = table.owner("t.tasks.p.interactive", 2, view.now_s())
            assert owner is not None
            assert (owner.slots, owner.in_flight, owner.queue_seconds) == (3, 0, 0.0)
        await until(lambda: table.is_dead("dies", view.now_s()))
        assert not table.is_dead("stays", view.now_s())
        await dies.leave()
        await until(lambda: table.member("dies") is None)
        assert stays.unsent == 0


async def test_a_view_that_begins_takes_the_newest_beats_at_their_age(bus: BusParts) -> None:
    """A long history is not lived through again: nobody is alive because an old beat was read just now."""
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    for number in range(300):
        said = {"pool": "p", "state": "ready", "slots": 1, "in_flight": number}
        await put(publisher, topic, WorkerBeat(sent_ms=1, worker="old", **said))
    await put(publisher, topic, PoolOrder(sent_ms=1, pool="p", mode="paused"))
    await asyncio.sleep(0 if isinstance(bus, FakeParts) else DEAD_AFTER_S + 0.5)
    alive, _ = beats_of("alive", publisher, topic)
    async with running(alive):
        await asyncio.sleep(0.5)
        view = view_of(bus, topic)
        heard: list[bytes | None] = []
        view.listeners.append(lambda record, _: heard.append(record.key))
        async with running(view):
            await view.caught_up.wait()
            now_s, table = view.now_s(), view.table
            assert table.mode("p") == "paused"
            assert not table.is_dead("alive", now_s)
            old = table.member("old")
            assert old is not None
            assert old.beat.in_flight == 299
            assert table.is_dead("old", now_s) or isinstance(bus, FakeParts)  # its records are 1 ms apart
            assert heard.count(b"worker/old") == 1


async def test_a_view_that_is_given_up_while_it_opens_closes_its_reader() -> None:
    nobody, traits = f"127.0.0.1:{free_port()}", traits_of("kafka")
    reader = KafkaLogReader(
        nobody, traits, topic="fleet", partitions=[0], client_id="given-up", fetch_max_wait_ms=100
    )
    async with running(FleetView(reader, FleetTable(), time.monotonic)):
        await until(lambda: reader._opening)
    assert reader._opening is not None
    assert reader._opening.done()


async def test_what_is_no_heartbeat_is_passed_over(bus: BusParts) -> None:
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    view = view_of(bus, topic)
    async with running(view):
        for key, value, name in (
            (b"worker/x", b"{", "WorkerBeat"),
            (b"worker/y", b'{"worker": "y"}', "WorkerBeat"),
            (b"\xff/z", b"{}", "OfTomorrow"),
            (b"nothing", None, "WorkerBeat"),
        ):
            headers = [("type", name.encode()), ("v", b"1")]
            await publisher.send(OutRecord(topic, key, value, headers, 0), timeout_s=PATIENCE_S)
        beats, _ = beats_of("good", publisher, topic)
        async with running(beats):
            await until(lambda: view.table.member("good"))
        assert [member.beat.worker for member in view.table.members()] == ["good"]


async def test_a_broker_that_is_frozen_for_long_makes_nobody_dead(
    parts: KafkaParts, broker: BrokerUnderTest
) -> None:
    topic = await parts.topic(1)
    publisher = await parts.publisher()
    (alive, _), (dead, _) = beats_of("alive", publisher, topic), beats_of("dead", publisher, topic)
    view = view_of(parts, topic)
    died: list[float] = []
    async with running(view, alive):
        async with running(dead):
            await until(lambda: len(view.table.alive("p", view.now_s())) == 2)
        await until(lambda: view.table.is_dead("dead", view.now_s()))
        broker.launcher.freeze()
        try:
            await watched(view, died, 8.0)
        finally:
            broker.launcher.thaw()
        await watched(view, died, 8.0)
        assert died == []
        assert view.table.is_dead("dead", view.now_s())
        assert alive.unsent > 0, "beats that were not acknowledged are dropped, and nothing waits for them"


async def watched(view: FleetView, died: list[float], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if view.table.is_dead("alive", view.now_s()):
            died.append(time.monotonic())
        await asyncio.sleep(0.02)


async def test_a_reader_that_was_stopped_itself_sees_nobody_dead() -> None:
    """As SIGSTOP and SIGCONT: the clock jumps between two looks, and beats came meanwhile."""
    bus = FakeParts("t.")
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    jump_s = [0.0]
    view = FleetView(bus.new_reader(topic, [0]), FleetTable(), lambda: time.monotonic() + jump_s[0])
    beats, _ = beats_of("alive", publisher, topic)
    async with running(view, beats):
        await until(lambda: view.table.member("alive"))
        for _ in range(3):
            jump_s[0] += 60.0
            for _ in range(40):
                assert not view.table.is_dead("alive", view.now_s())
                await asyncio.sleep(0.02)
    await bus.stop()


@pytest.mark.parametrize("times", [1, 3])
async def test_dead_workers_are_seen_dead_after_outages_too(times: int) -> None:
    bus = FakeParts("t.")
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    jump_s = [0.0]
    view = FleetView(bus.new_reader(topic, [0]), FleetTable(), lambda: time.monotonic() + jump_s[0])
    beats, _ = beats_of("dies", publisher, topic)
    async with running(view):
        async with running(beats):
            await until(lambda: view.table.member("dies"))
        for _ in range(times):
            jump_s[0] += 60.0
            await asyncio.sleep(0.3)
        await until(lambda: view.table.is_dead("dies", view.now_s()))
    await bus.stop()


async def test_a_record_under_the_key_of_another_says_nothing() -> None:
    """A beat whose worker is not its key's could neither die nor leave: who works there was asked by another
    name."""
    bus = FakeParts("t.")
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    view = view_of(bus, topic)
    ghost = WorkerBeat(sent_ms=1, worker="ghost", pool="p", state="ready", slots=9, in_flight=0)
    order = PoolOrder(sent_ms=1, pool="other", mode="paused")
    async with running(view):
        for key, message in ((b"worker/x", ghost), (b"pool/p", order), (b"worker/p", order)):
            record = OutRecord(topic, key, encode(message), message_headers(message), 0)
            await publisher.send(record, timeout_s=PATIENCE_S)
        beats, _ = beats_of("good", publisher, topic)
        async with running(beats):
            await until(lambda: view.table.member("good"))
        assert [member.beat.worker for member in view.table.members()] == ["good"]
        assert view.table.mode("p") == "running"
    await bus.stop()


def test_a_beat_owns_no_more_partitions_than_a_lane_has() -> None:
    said = {"sent_ms": 1, "worker": "w", "pool": "p", "state": "ready", "slots": 1, "in_flight": 0}
    headers = {"type": "WorkerBeat", "v": "1"}
    most = decode_fleet(headers, orjson.dumps({**said, "owns": {"t": list(range(256))}}))
    assert isinstance(most, WorkerBeat)
    assert len(most.owns["t"]) == 256
    for lie in ({"owns": {"t": list(range(140_000))}}, {"queue_seconds": "inf"}, {"service_seconds": "inf"}):
        with pytest.raises(SchemaError, match=next(iter(lie))):
            decode_fleet(headers, orjson.dumps({**said, **lie}))
