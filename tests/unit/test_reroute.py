"""Where a task may go from where it waits, and where it never does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode
from schemas.topics import TopicNames
from services.core.fleet import Pool, Price
from services.core.fleet_load import Station
from services.core.placement import stable_partition
from services.core.reroute import (
    MOST_HOPS,
    Cause,
    Fail,
    FleetSnapshot,
    Here,
    Move,
    Park,
    RerouteLaw,
    Stay,
    TaskFacts,
    able_pools,
    reroute,
)
from services.core.routing import Need, lacks

NAMES = TopicNames("t.")
LAW = RerouteLaw()
PARTITIONS = 4
NOW_S = 1_000.0
A = Pool(name="a", model="m", fallbacks=("b",), quality=0.5, price=Price(output_per_mtok=1))
B = Pool(name="b", model="other", features=frozenset({"tools"}), quality=0.4, price=Price(output_per_mtok=2))
OUTSIDE = Pool(name="outside", model="m", external=True, context_tokens=100_000, quality=0.9)
POOLS = (A, B, OUTSIDE)
CAUSES: tuple[Cause, ...] = ("late", "tail", "drained", "no_backend", "orphaned")


def task(**more: object) -> TaskFacts:
    need = {
        name: more.pop(name)
        for name in ("model", "features", "data_policy", "objective", "input_tokens", "capabilities")
        if name in more
    }
    wanted = Need(kind="chat", model=need.pop("model", "auto"), **need)  # type: ignore[arg-type] # by name
    facts = TaskFacts("task", wanted, "a", "interactive", NOW_S + 60, NOW_S - 1)
    return replace(facts, **more)  # type: ignore[arg-type] # by name


def station(pool: str, worker: str = "", **more: object) -> Station:
    name = worker or f"w-{pool}"
    owns = {NAMES.lane(pool, priority): (1, 3) for priority in ("interactive", "standard", "batch")}
    made = Station(name, pool, "ready", slots=2, free=2, work_s=0.0, usual_s=1.0, owns=owns)
    return replace(made, **more)  # type: ignore[arg-type] # by name


def fleet(*stations: Station, modes: Mapping[str, PoolMode] | None = None) -> FleetSnapshot:
    return FleetSnapshot(NAMES, PARTITIONS, POOLS, stations, modes or {})


def here(cause: Cause, **more: object) -> Here:
    return replace(Here("a", "me", cause, wait_s=10.0), **more)  # type: ignore[arg-type] # by name


def pool_of(step: object) -> str | None:
    return step.pool if isinstance(step, Move) else None


# what is never done, whatever the fleet looks like

STATIONS = st.lists(
    st.builds(
        Station,
        worker=st.sampled_from(["me", "w1", "w2", "w3"]),
        pool=st.sampled_from(["a", "b", "outside"]),
        standing=st.sampled_from(["ready", "stuck", "loading", "draining"]),
        slots=st.integers(0, 4),
        free=st.integers(0, 4),
        work_s=st.floats(0, 500),
        usual_s=st.floats(0.01, 50),
        owns=st.sampled_from([{}, {NAMES.lane("b", "interactive"): (2,)}]),
    ),
    max_size=5,
)
TASKS = st.builds(
    TaskFacts,
    task_id=st.text(min_size=1, max_size=5),
    need=st.builds(
        Need,
        kind=st.sampled_from(["chat", "completion", "embedding"]),
        model=st.sampled_from(["auto", "a", "b", "m", "other", ""]),
        objective=st.sampled_from(["cost", "quality", "balanced"]),
        capabilities=st.sampled_from([(), ("coding",), ("a",)]),
        features=st.sampled_from([frozenset(), frozenset({"tools"})]),
        input_tokens=st.sampled_from([10, 5_000]),
        data_policy=st.sampled_from(["any", "local"]),
    ),
    asked=st.sampled_from(["a", "b"]),
    priority=st.sampled_from(["interactive", "batch"]),
    deadline_s=st.floats(NOW_S - 1, NOW_S + 300),
    arrived_s=st.floats(NOW_S - 300, NOW_S),
    hops=st.integers(0, 3),
    session_id=st.none() | st.just("s"),
    affinity=st.sampled_from(["sticky", "soft", "off"]),
)
HERES = st.builds(
    Here, st.just("a"), st.just("me"), st.sampled_from(CAUSES), st.floats(0, 1e3), st.floats(0.01, 20)
)
STOPPED: tuple[PoolMode, ...] = ("paused", "draining")
MODES = st.dictionaries(st.sampled_from(["a", "b", "outside"]), st.sampled_from(STOPPED))


@given(TASKS, HERES, STATIONS, MODES)
def test_no_move_breaks_a_law(
    facts: TaskFacts, at: Here, stations: list[Station], modes: dict[str, PoolMode]
) -> None:
    step = reroute(facts, at, fleet(*stations, modes=modes), LAW, NOW_S)
    if not isinstance(step, Move):
        return
    pool = next(pool for pool in POOLS if pool.name == step.pool)
    assert lacks(pool, facts.need, whole=pool.name != facts.asked) is None
    assert not (pool.external and facts.need.data_policy == "local")
    assert facts.hops < MOST_HOPS
    assert facts.deadline_s > NOW_S
    assert (step.pool, step.worker) != ("a", "me")
    assert step.pool not in modes
    assert step.lane == NAMES.lane(step.pool, facts.priority)
    assert 0 <= step.partition < PARTITIONS
    taken = [one for one in stations if one.worker == step.worker and one.pool == step.pool]
    assert any(one.standing == "ready" and one.wait_s < facts.deadline_s - NOW_S for one in taken)
    if facts.need.model in ("a", "b"):
        assert step.pool in {"a": ("a", "b", "outside"), "b": ("b",)}[facts.need.model]
    if at.cause in ("late", "tail"):
        assert facts.hops == 0
        assert not (facts.affinity == "sticky" and facts.session_id)


@given(TASKS, HERES, STATIONS)
def test_only_orphans_are_parked_and_what_is_due_is_later_than_now(
    facts: TaskFacts, at: Here, stations: list[Station]
) -> None:
    step = reroute(facts, at, fleet(*stations), LAW, NOW_S)
    if isinstance(step, Park):
        assert at.cause == "orphaned"
        assert NOW_S + LAW.park_least_s <= step.due_s <= NOW_S + LAW.park_most_s
    if at.cause == "orphaned":
        assert not isinstance(step, Stay)


@given(TASKS, st.floats(0, 100), st.floats(0, 100), st.floats(0.01, 20), st.floats(0.01, 20))
def test_a_tail_never_goes_to_and_fro(
    facts: TaskFacts, here_s: float, there_s: float, usual_a: float, usual_b: float
) -> None:
    """Wherever the load moved it, and whatever it finds there, the load does not move it again."""
    at = Here("a", "me", "tail", here_s, usual_a)
    step = reroute(facts, at, fleet(station("b", usual_s=usual_b)), LAW, NOW_S)
    if isinstance(step, Move):
        moved = replace(facts, hops=facts.hops + 1)
        back = Here("b", step.worker, "tail", there_s, usual_b)
        assert reroute(moved, back, fleet(station("a", "me")), LAW, NOW_S) == Stay()


# whom it may go to


@pytest.mark.parametrize(
    ("model", "allowed"),
    [
        ("auto", {"a", "b", "outside"}),
        ("a", {"a", "b", "outside"}),  # its fallback, and who has its model
        ("b", {"b"}),
        ("m", {"a", "b", "outside"}),
        ("", {"a", "b", "outside"}),  # it was sent to a pool without a word: that is as naming it
    ],
)
def test_who_is_named_is_meant(model: str, allowed: set[str]) -> None:
    able, _ = able_pools(task(model=model), POOLS)
    assert {pool.name for pool in able} == allowed


def test_a_pool_that_was_not_named_is_held_to_the_length() -> None:
    able, lacking = able_pools(task(model="a", input_tokens=50_000), POOLS)
    assert [pool.name for pool in able] == ["a", "outside"]  # the named one's own backend judges it
    assert [name for name, _ in lacking] == ["b"]


# by cause


def test_a_tail_is_handed_to_a_free_worker_of_its_pool_or_an_able_one() -> None:
    assert pool_of(reroute(task(), here("tail"), fleet(station("a")), LAW, NOW_S)) == "a"
    assert pool_of(reroute(task(), here("tail"), fleet(station("b")), LAW, NOW_S)) == "b"
    soonest = fleet(station("a", usual_s=3.0), station("b", usual_s=1.0))
    assert pool_of(reroute(task(), here("tail"), soonest, LAW, NOW_S)) == "b"


def test_a_tail_stays_where_nobody_is_free_or_little_is_gained() -> None:
    busy = station("a", free=0, work_s=0.5)
    assert reroute(task(), here("tail"), fleet(busy), LAW, NOW_S) == Stay()
    assert reroute(task(), here("tail", wait_s=0.3), fleet(station("a")), LAW, NOW_S) == Stay()
    assert reroute(task(), here("tail"), fleet(station("a", usual_s=20.0)), LAW, NOW_S) == Stay()


def test_the_load_moves_a_task_once() -> None:
    for hops, stays in ((0, False), (1, True)):
        step = reroute(task(hops=hops), here("tail"), fleet(station("a")), LAW, NOW_S)
        assert (step == Stay()) is stays


def test_no_task_goes_where_it_could_not_start_in_time() -> None:
    busy = fleet(station("b", free=0, work_s=200.0))
    causes: tuple[Cause, ...] = ("drained", "no_backend")
    for cause in causes:
        nothing_starts = here(cause, wait_s=float("inf"))
        assert reroute(task(), nothing_starts, busy, LAW, NOW_S) == Stay()
        assert pool_of(reroute(task(deadline_s=NOW_S + 101), nothing_starts, busy, LAW, NOW_S)) == "b"


def test_no_task_goes_to_a_pool_that_an_operator_stopped() -> None:
    for mode in STOPPED:
        stopped = fleet(station("b"), modes={"b": mode})
        assert reroute(task(), here("tail"), stopped, LAW, NOW_S) == Stay()
        assert reroute(task(), here("no_backend"), stopped, LAW, NOW_S) == Stay()


def test_a_warm_prefix_is_worth_a_wait() -> None:
    warm = task(session_id="s")
    assert reroute(warm, here("tail", wait_s=1.5), fleet(station("a")), LAW, NOW_S) == Stay()
    assert pool_of(reroute(task(), here("tail", wait_s=1.5), fleet(station("a")), LAW, NOW_S)) == "a"
    off = replace(warm, affinity="off")
    assert pool_of(reroute(off, here("tail", wait_s=1.5), fleet(station("a")), LAW, NOW_S)) == "a"


def test_a_shorter_wait_does_not_buy_off_the_objective() -> None:
    spare = fleet(station("b"))
    assert reroute(task(objective="cost"), here("tail"), spare, LAW, NOW_S) == Stay()
    assert reroute(task(objective="quality"), here("tail"), spare, LAW, NOW_S) == Stay()
    assert pool_of(reroute(task(objective="latency"), here("tail"), spare, LAW, NOW_S)) == "b"


def test_what_cannot_start_in_time_is_forwarded_else_it_fails_only_where_that_is_certain() -> None:
    soon = task(deadline_s=NOW_S + 5)
    assert pool_of(reroute(soon, here("late"), fleet(station("b")), LAW, NOW_S)) == "b"
    assert reroute(soon, here("late"), fleet(), LAW, NOW_S) == Stay()
    assert reroute(soon, here("late", least_s=19.0), fleet(), LAW, NOW_S) == Stay()
    step = reroute(soon, here("late", least_s=21.0), fleet(), LAW, NOW_S)
    assert isinstance(step, Fail)
    assert step.failure.kind is FailureKind.DEADLINE
    assert "pool a cannot begin before the deadline" in step.failure.message


def test_a_drained_pool_hands_over_to_others_only_and_by_the_objective() -> None:
    both = fleet(station("b"), station("outside"), station("a", "twin"))
    best = task(objective="quality")
    assert pool_of(reroute(best, here("drained", wait_s=1e9), both, LAW, NOW_S)) == "outside"
    local = task(data_policy="local")
    assert pool_of(reroute(local, here("drained"), both, LAW, NOW_S)) == "b"
    twin = fleet(station("a", "twin"))
    assert reroute(task(), here("drained"), twin, LAW, NOW_S) == Stay()


def test_without_a_backend_another_worker_of_the_pool_will_do() -> None:
    assert pool_of(reroute(task(), here("no_backend"), fleet(station("a", "twin")), LAW, NOW_S)) == "a"
    stuck = fleet(station("a", "twin", standing="stuck"))
    assert reroute(task(), here("no_backend"), stuck, LAW, NOW_S) == Stay()


def test_a_backend_that_holds_off_for_a_moment_is_waited_for() -> None:
    free, busy = fleet(station("b")), fleet(station("b", free=0, work_s=8.0))
    assert reroute(task(), here("no_backend", wait_s=0.25), free, LAW, NOW_S) == Stay()
    assert reroute(task(), here("no_backend", wait_s=2.0), busy, LAW, NOW_S) == Stay()
    for wait_s in (5.0, float("inf")):
        assert pool_of(reroute(task(), here("no_backend", wait_s=wait_s), busy, LAW, NOW_S)) == "b"


def test_a_sticky_session_moves_from_the_dead_to_its_own_partition_there() -> None:
    sticky = task(session_id="s", affinity="sticky")
    assert reroute(sticky, here("tail"), fleet(station("b")), LAW, NOW_S) == Stay()
    step = reroute(sticky, here("orphaned"), fleet(station("b")), LAW, NOW_S)
    assert isinstance(step, Move)
    assert step.partition == stable_partition("s", PARTITIONS)


def test_an_adopter_does_itself_what_its_own_pool_may_do() -> None:
    assert pool_of(reroute(task(), here("orphaned"), fleet(station("b", "me")), LAW, NOW_S)) == "b"


def test_an_orphan_waits_with_growing_pauses_and_fails_with_the_reason() -> None:
    loading = fleet(station("b", standing="loading"))
    young, old = task(arrived_s=NOW_S), task(arrived_s=NOW_S - 20)
    assert reroute(young, here("orphaned"), loading, LAW, NOW_S) == Park(NOW_S + 2)
    assert reroute(old, here("orphaned"), loading, LAW, NOW_S) == Park(NOW_S + 10)
    needy = task(features=frozenset({"vision"}), data_policy="local")
    assert reroute(needy, here("orphaned"), fleet(), LAW, NOW_S) == Park(NOW_S + 2)
    step = reroute(replace(needy, deadline_s=NOW_S + 1), here("orphaned"), fleet(), LAW, NOW_S)
    assert isinstance(step, Fail)
    assert step.failure.kind is FailureKind.NO_POOL
    assert "no worker of pool a is alive" in step.failure.message
    assert "b lacks feature vision" in step.failure.message
    assert "the data policy is local" in step.failure.message


def test_after_two_hops_nothing_moves_any_more() -> None:
    tired = task(hops=MOST_HOPS)
    for cause in ("tail", "late", "drained", "no_backend"):
        assert reroute(tired, here(cause), fleet(station("b")), LAW, NOW_S) == Stay()
    assert isinstance(reroute(tired, here("orphaned"), fleet(station("b")), LAW, NOW_S), Park)
