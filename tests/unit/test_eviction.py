"""Which batch task gives its slot up: least work lost, never more than what waits, never for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.eviction import AskAgain, Evict, EvictionLaw, Running, Waiting, decide

LAW = EvictionLaw(wait_s=0.05, most_evictions=3, ending_s=0.02)
NOW = 1_000.0
BATCH = Running("b", "batch", started_s=NOW - 5, rest_s=5.0)
WAITS = Waiting("i", since_s=NOW - 1, deadline_s=NOW + 60, needs_s=1.0)

seconds = st.floats(0.0, 20.0)
runs = st.builds(
    Running,
    task_id=st.uuids().map(str),
    priority=st.sampled_from(["interactive", "standard", "batch"]),
    started_s=seconds.map(lambda s: NOW - s),
    rest_s=seconds,
    evictions=st.integers(0, 4),
    content=st.booleans(),
    lent=st.booleans(),
    fixed=st.booleans(),
)
waits = st.builds(
    Waiting,
    task_id=st.uuids().map(str),
    since_s=seconds.map(lambda s: NOW - s),
    deadline_s=seconds.map(lambda s: NOW + s),
    needs_s=seconds,
)


def asked(running: Running, waiting: Waiting = WAITS) -> Evict | AskAgain | None:
    return decide([waiting], 1, [running], 0, LAW, NOW)


def test_a_task_that_waited_too_long_gets_a_batch_tasks_slot() -> None:
    assert asked(BATCH) == Evict("b", "i")


def test_one_that_just_came_waits_first() -> None:
    assert asked(BATCH, replace(WAITS, since_s=NOW)) == AskAgain(NOW + 0.05)


def test_one_that_would_miss_its_deadline_does_not_wait() -> None:
    assert asked(BATCH, replace(WAITS, since_s=NOW, deadline_s=NOW + 3)) == Evict("b", "i")


def test_one_that_would_miss_it_anyway_has_no_such_claim() -> None:
    hopeless = replace(WAITS, since_s=NOW, deadline_s=NOW + 0.5)
    assert asked(BATCH, hopeless) == AskAgain(NOW + 0.05)


def test_one_behind_the_next_is_seen_too_if_its_deadline_is_near() -> None:
    first, urgent = replace(WAITS, since_s=NOW), Waiting("u", NOW, NOW + 3, 1.0)
    assert decide([first, urgent], 2, [BATCH], 0, LAW, NOW) == Evict("b", "u")


def test_a_slot_that_comes_free_at_once_is_waited_for() -> None:
    ending = Running("s", "standard", NOW - 1, rest_s=0.01)
    assert decide([WAITS], 1, [BATCH, ending], 0, LAW, NOW) == AskAgain(NOW + 0.01)


def test_the_youngest_is_evicted_with_the_least_work_lost() -> None:
    young = replace(BATCH, task_id="young", started_s=NOW - 1)
    assert decide([WAITS], 1, [BATCH, young], 0, LAW, NOW) == Evict("young", "i")


@pytest.mark.parametrize(
    "barred",
    [
        {"priority": "standard"},
        {"content": True},
        {"lent": True},
        {"fixed": True},
        {"evictions": 3},
        {"rest_s": 0.01},
    ],
    ids=str,
)
def test_who_is_never_evicted(barred: dict[str, Any]) -> None:
    assert asked(replace(BATCH, **barred)) is None


def test_what_waits_and_has_a_slot_coming_is_not_evicted_for() -> None:
    assert decide([WAITS], 2, [BATCH], 2, LAW, NOW) is None
    assert decide([WAITS], 3, [BATCH], 2, LAW, NOW) == Evict("b", "i")


def test_nothing_waits_nothing_is_evicted() -> None:
    assert decide([], 0, [BATCH], 0, LAW, NOW) is None
    assert decide([WAITS], 1, [], 0, LAW, NOW) is None


@given(st.lists(waits, max_size=2), st.lists(runs, max_size=8), st.integers(0, 5), st.integers(0, 5))
def test_whom_an_eviction_may_meet(
    candidates: list[Waiting], running: list[Running], more: int, coming: int
) -> None:
    waiting = len(candidates) + more if candidates else 0
    step = decide(candidates, waiting, running, coming, LAW, NOW)
    if isinstance(step, AskAgain):
        assert step.at_s > NOW
    if not isinstance(step, Evict):
        return
    assert waiting > coming
    assert step.task_id in {each.task_id for each in candidates}
    victim = next(each for each in running if each.task_id == step.victim)
    assert victim.priority == "batch"
    assert (victim.content, victim.lent, victim.fixed) == (False, False, False)
    assert victim.evictions < 3
    assert victim.rest_s > LAW.ending_s
    rivals = [each for each in running if each.started_s > victim.started_s]
    assert all(decide(candidates, waiting, [each], 0, LAW, NOW) is None for each in rivals)
