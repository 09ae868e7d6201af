"""What the table of the fleet holds whatever is read: who is dead, who owns what, what is paused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_messages import PoolMode, PoolOrder, WorkerBeat
from services.core.fleet import Fleet, Pool, Timeouts
from services.core.fleet_table import DEAD_AFTER_S, FORGET_AFTER_S, STALL_SLACK_S, FleetTable, stall_bounds

STALLED_S = 10.0
WORKERS = ("a", "b", "c")
LANE = "t.tasks.p.interactive"


def beat(worker: str, **fields: Any) -> WorkerBeat:
    said: dict[str, Any] = {"pool": "p", "state": "ready", "slots": 1, "in_flight": 0, **fields}
    return WorkerBeat(sent_ms=1, worker=worker, **said)


def order(mode: PoolMode) -> PoolOrder:
    return PoolOrder(sent_ms=1, pool="p", mode=mode)


def table() -> FleetTable:
    return FleetTable(stalled_after_s={"p": STALLED_S})


beats = st.tuples(
    st.just("beat"),
    st.sampled_from(WORKERS),
    st.floats(0, 2 * STALLED_S),
    st.frozensets(st.integers(0, 3), max_size=3),
)
steps = st.one_of(
    beats,
    st.tuples(st.just("leave"), st.sampled_from(WORKERS)),
    st.tuples(st.just("wait"), st.floats(0, 2 * DEAD_AFTER_S)),
    st.tuples(st.just("away"), st.floats(0, 20 * DEAD_AFTER_S)),
    st.tuples(st.just("forget")),
)


class Model:
    """The same in the plainest words: the last beat of each, and how long it was listened to since."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.silent_s: dict[str, float] = {}
        self.quiet_s: dict[str, float] = {}
        self.owns: dict[str, frozenset[int]] = {}
        self.claims: dict[int, str] = {}

    def dead(self, worker: str) -> bool:
        silent_s = self.silent_s[worker]
        return silent_s >= DEAD_AFTER_S or silent_s + self.quiet_s[worker] >= STALLED_S

    def drop(self, worker: str) -> None:
        self.silent_s.pop(worker, None)
        self.claims = {partition: owner for partition, owner in self.claims.items() if owner != worker}

    def step(self, fleet: FleetTable, step: tuple[Any, ...]) -> None:
        match step:
            case ("beat", worker, quiet_s, owns):
                said = beat(worker, quiet_s=quiet_s, owns={LANE: tuple(owns)})
                fleet.apply(f"worker/{worker}", said, self.now_s)
                self.drop(worker)
                self.silent_s[worker], self.quiet_s[worker], self.owns[worker] = 0.0, quiet_s, owns
                self.claims |= dict.fromkeys(owns, worker)
            case ("leave", worker):
                fleet.apply(f"worker/{worker}", None, self.now_s)
                self.drop(worker)
            case ("wait", seconds):
                self.now_s += seconds
                self.silent_s = {name: silent_s + seconds for name, silent_s in self.silent_s.items()}
            case ("away", seconds):
                self.now_s += seconds
                fleet.paused(seconds)
            case ("forget",):
                fleet.forget(self.now_s)
                for name in [n for n, silent_s in self.silent_s.items() if silent_s >= FORGET_AFTER_S]:
                    self.drop(name)


def near(model: Model) -> bool:
    """Within rounding of a bound: either answer is right."""
    return any(
        abs(silent_s - DEAD_AFTER_S) < 1e-6 or abs(silent_s + model.quiet_s[name] - STALLED_S) < 1e-6
        for name, silent_s in model.silent_s.items()
    )


@given(st.lists(steps, max_size=40))
def test_any_story_gives_who_is_alive_and_who_owns_what(story: list[tuple[Any, ...]]) -> None:
    fleet, model = table(), Model()
    for step in story:
        model.step(fleet, step)
        if near(model):
            continue
        now_s = model.now_s
        dead = {worker for worker in model.silent_s if model.dead(worker)}
        alive = model.silent_s.keys() - dead
        assert {worker for worker in WORKERS if fleet.is_dead(worker, now_s)} == dead
        assert {member.beat.worker for member in fleet.dead(now_s)} == dead
        assert {said.worker for said in fleet.alive("p", now_s)} == alive
        assert fleet.census(now_s)["p", "dead"] == len(dead)
        assert fleet.census(now_s)["p", "ready"] == len(alive)
        for partition in range(4):
            owner = fleet.owner(LANE, partition, now_s)
            claimed = model.claims.get(partition)
            assert (owner.worker if owner else None) == (claimed if claimed in alive else None)


@given(st.floats(0, 2.9), st.floats(0, 1000))
def test_nobody_dies_while_nothing_can_be_read(silent_s: float, away_s: float) -> None:
    fleet = table()
    fleet.apply("worker/a", beat("a"), 0.0)
    fleet.paused(away_s)
    now_s = silent_s + away_s
    assert not fleet.is_dead("a", now_s)
    assert fleet.is_dead("a", now_s + DEAD_AFTER_S + 0.001)
    fleet.resumed(now_s, 3.0)
    assert not fleet.is_dead("a", now_s + DEAD_AFTER_S + 2.9), "it has a grace to connect again"
    assert fleet.is_dead("a", now_s + DEAD_AFTER_S + 3.1)


@given(st.lists(st.tuples(st.floats(0.0, 0.9), st.floats(1.1, 30.0)), min_size=1, max_size=20))
def test_pauses_that_follow_each_other_add_up_to_one_grace(pauses: list[tuple[float, float]]) -> None:
    fleet, now_s = table(), 0.0
    fleet.apply("worker/a", beat("a"), now_s)
    for read_s, away_s in pauses:
        now_s += read_s + away_s
        fleet.paused(away_s)
        fleet.resumed(now_s, 3.0)
        assert not fleet.is_dead("a", now_s)
    assert fleet.is_dead("a", now_s + DEAD_AFTER_S + 3.001)


def test_a_resumed_reader_brings_nobody_back_from_the_dead() -> None:
    fleet = table()
    fleet.apply("worker/a", beat("a"), 0.0)
    fleet.resumed(4.0, 3.0)
    assert fleet.is_dead("a", 4.0)


def test_who_was_never_heard_of_is_not_dead_and_who_was_forgotten_is_not_known() -> None:
    fleet = table()
    assert not fleet.is_dead("a", 1e9)
    fleet.apply("worker/a", beat("a", owns={LANE: (1,)}), 0.0)
    fleet.forget(FORGET_AFTER_S - 1)
    assert fleet.is_dead("a", FORGET_AFTER_S)
    fleet.forget(FORGET_AFTER_S)
    assert fleet.member("a") is None
    assert not fleet.is_dead("a", FORGET_AFTER_S)
    assert fleet._owners == {}, "nothing of it is kept"


def test_a_pool_is_silent_since_its_last_beat_of_a_worker_that_serves() -> None:
    fleet = table()
    assert fleet.silent_s("p", 5.0) is None
    fleet.apply("worker/a", beat("a", state="loading"), 1.0)
    fleet.apply("worker/b", beat("b", state="draining"), 3.0)
    assert fleet.silent_s("p", 5.0) == pytest.approx(4.0)
    assert fleet.ready("p", 3.5) == []
    fleet.apply("worker/c", beat("c"), 4.0)
    assert [said.worker for said in fleet.ready("p", 5.0)] == ["c"]
    fleet.apply("worker/old", beat("old"), 2.0)  # as the log was read: older than what is known
    assert fleet.silent_s("p", 5.0) == pytest.approx(1.0)


def test_the_last_order_of_a_pool_stands() -> None:
    fleet = table()
    modes: list[PoolMode] = []
    for said in (order("paused"), order("draining"), order("running"), order("paused"), None):
        fleet.apply("pool/p", said, 0.0)
        modes.append(fleet.mode("p"))
    assert modes == ["paused", "draining", "running", "paused", "running"]
    assert fleet.mode("other") == "running"


@pytest.mark.parametrize(
    ("more", "longest_s"),
    [
        ({}, 30.0),
        ({"timeouts": Timeouts(first_token_s=5, idle_s=20, total_s=60)}, 20.0),
        ({"streaming": False}, 120.0),
        ({"features": frozenset({"embeddings"})}, 120.0),
        ({"capabilities": frozenset({"embed"})}, 120.0),
        ({"backend": "mcp"}, 120.0),
    ],
)
def test_a_pool_may_be_silent_for_as_long_as_its_guards_let_it(
    more: Mapping[str, Any], longest_s: float
) -> None:
    pool = Pool(name="p", model="m", **more)
    assert stall_bounds(Fleet(pools=(pool,))) == {"p": longest_s + STALL_SLACK_S}
