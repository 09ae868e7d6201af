"""Where a task may go from where it waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.failures import FailureKind
from services.core.placement import stable_partition
from services.core.reroute import (
    MOST_HOPS,
    Cause,
    Fail,
    Move,
    Park,
    Stay,
    able_pools,
    reroute,
)
from tests.reroute_cases import (
    LAW,
    NAMES,
    NOW_S,
    PARTITIONS,
    POOLS,
    STOPPED,
    fleet,
    here,
    pool_of,
    station,
    task,
)


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


@pytest.mark.parametrize(("owned", "chosen"), [((99, -1, 3), 3), ((PARTITIONS,), None)])
def test_nothing_moves_to_a_partition_that_is_none(owned: tuple[int, ...], chosen: int | None) -> None:
    """Its record could not be written, and the task would never be let go of."""
    moving = [task(task_id=f"t{number}") for number in range(20)]
    to = fleet(station("b", owns={NAMES.lane("b", moving[0].priority): owned}))
    for one in moving:
        step = reroute(one, here("tail"), to, LAW, NOW_S)
        assert isinstance(step, Move)
        own = stable_partition(one.task_id, PARTITIONS)
        assert step.partition == (own if chosen is None else chosen)


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
