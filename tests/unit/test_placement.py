"""Where a publisher puts a task: its session's own partition, or the better of two."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from services.core.placement import LIGHT_MOST_S, LIGHT_S, LaneView, place, stable_partition

PARTITIONS = 8
UNITS = st.lists(st.floats(0, 0.999999), min_size=2, max_size=2)
QUEUES = st.lists(st.floats(0, 100), min_size=PARTITIONS, max_size=PARTITIONS)
SOME = st.sets(st.integers(0, PARTITIONS - 1))


def draws(units: list[float]) -> Callable[[], float]:
    drawn = iter(units)
    return lambda: next(drawn)


def view(queues: list[float], ready: set[int], avoid: set[int]) -> LaneView:
    return LaneView(PARTITIONS, tuple(sorted(ready)), avoid - ready, queues.__getitem__, lambda _: 0)


@given(QUEUES, SOME, SOME, UNITS, st.text(min_size=1, max_size=9))
def test_sticky_is_the_sessions_own_partition_whatever_the_fleet_does(
    queues: list[float], ready: set[int], avoid: set[int], units: list[float], session: str
) -> None:
    lane = view(queues, ready, avoid)
    assert place(lane, session, "sticky", draws(units)) == stable_partition(session, PARTITIONS)


@given(
    QUEUES, SOME, SOME, UNITS, st.none() | st.text(min_size=1, max_size=9), st.sampled_from(["soft", "off"])
)
def test_dead_and_draining_owners_are_avoided_where_there_are_others(
    queues: list[float],
    ready: set[int],
    avoid: set[int],
    units: list[float],
    session: str | None,
    affinity: str,
) -> None:
    lane = view(queues, ready, avoid)
    chosen = place(lane, session, affinity, draws(units))  # type: ignore[arg-type] # by name
    assert 0 <= chosen < PARTITIONS
    if ready:
        assert chosen in ready
    elif len(avoid) < PARTITIONS:
        assert chosen not in avoid


@given(QUEUES, SOME.filter(lambda s: len(s) > 1), UNITS)
def test_off_takes_a_partition_that_is_not_the_worst(
    queues: list[float], ready: set[int], units: list[float]
) -> None:
    chosen = place(view(queues, ready, set()), "s", "off", draws(units))
    assert any(queues[chosen] <= queues[other] for other in ready if other != chosen)


@given(QUEUES, UNITS, st.text(min_size=1, max_size=9))
def test_soft_keeps_the_session_only_while_its_owner_is_lightly_loaded(
    queues: list[float], units: list[float], session: str
) -> None:
    own = stable_partition(session, PARTITIONS)
    chosen = place(view(queues, set(range(PARTITIONS)), set()), session, "soft", draws(units))
    if queues[own] <= LIGHT_S:
        assert chosen == own
    elif queues[own] >= LIGHT_MOST_S or queues[own] >= 2 * min(queues):
        first = int(units[0] * PARTITIONS)
        second = (first + 1 + int(units[1] * (PARTITIONS - 1))) % PARTITIONS
        assert chosen in (first, second)
        assert queues[chosen] == min(queues[first], queues[second])


def test_of_two_with_equal_owners_the_one_with_fewer_tasks_of_our_own_is_taken() -> None:
    counts = {0: 5, 1: 1}
    lane = LaneView(2, own=lambda p: counts[p])
    assert place(lane, None, "soft", draws([0.0, 0.0])) == 1
    assert place(lane, "s", "off", draws([0.0, 0.0])) == 1
    queued = LaneView(2, (0, 1), (), {0: 0.1, 1: 0.2}.__getitem__, lambda p: counts[p])
    assert place(queued, None, "soft", draws([0.0, 0.0])) == 0


def test_the_one_partition_of_a_ready_worker_takes_all() -> None:
    lane = LaneView(8, (3,), {1, 2})
    assert {place(lane, None, "off", draws([u, 0.5])) for u in (0.0, 0.4, 0.99)} == {3}
    assert place(lane, "any session", "soft", draws([0.1, 0.1])) == 3
