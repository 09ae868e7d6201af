"""When a worker that runs tries counts as silent, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from schemas.failures import FailureKind
from services.worker_pools.gate import Gate
from services.worker_pools.progress import MOST_SHOWN, Progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def after(clock: Clock, seconds: float) -> None:
    clock.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> Progress:
    return Progress(2.0, clock)


@dataclass
class Outcome:
    failure: FailureKind | None = FailureKind.INTERNAL


@contextmanager
def running(progress: Progress, task_id: str) -> Iterator[Outcome]:
    """A try that runs through the body."""
    began_s, outcome = progress.began(task_id), Outcome()
    yield outcome
    progress.ended(task_id, outcome.failure, began_s)


def silent_try(progress: Progress, clock: Clock, seconds: float, kind: FailureKind) -> None:
    with running(progress, "t") as outcome:
        after(clock, seconds)
        outcome.failure = kind


def test_silence_counts_from_the_start_and_from_the_last_token(progress: Progress, clock: Clock) -> None:
    after(clock, 1000)
    assert progress.quiet_s() == 0, "nothing runs"
    with running(progress, "t") as outcome:
        assert progress.quiet_s() == 0
        after(clock, 5)
        assert progress.quiet_s() == 5
        progress.moved()
        after(clock, 2)
        assert progress.quiet_s() == 2
        outcome.failure = None
    assert progress.quiet_s() == 0


def test_one_try_that_gets_on_keeps_its_worker_alive(progress: Progress, clock: Clock) -> None:
    with running(progress, "hangs"):
        for _ in range(10):
            with running(progress, "answers") as outcome:
                after(clock, 3)
                outcome.failure = None
            assert progress.quiet_s() == 0
        after(clock, 3)
        assert progress.quiet_s() == 3
        assert progress.tasks == ("hangs",)


@pytest.mark.parametrize("kind", [FailureKind.FIRST_TOKEN_TIMEOUT, FailureKind.CANCELLED])
def test_tries_that_are_given_up_one_after_the_other_add_up(
    progress: Progress, clock: Clock, kind: FailureKind
) -> None:
    """A wedged server is not alive because its tries are ended and others begun."""
    for _ in range(4):
        silent_try(progress, clock, 5, kind)
    with running(progress, "t"):
        after(clock, 1)
        assert progress.quiet_s() == 21


def test_a_refusal_is_an_answer(progress: Progress, clock: Clock) -> None:
    silent_try(progress, clock, 5, FailureKind.IDLE_TIMEOUT)
    silent_try(progress, clock, 1, FailureKind.RATE_LIMITED)
    with running(progress, "t"):
        assert progress.quiet_s() == 0


def test_time_without_work_heals(progress: Progress, clock: Clock) -> None:
    silent_try(progress, clock, 10, FailureKind.IDLE_TIMEOUT)
    after(clock, 4)
    with running(progress, "t") as outcome:
        assert progress.quiet_s() == 6
        outcome.failure = FailureKind.IDLE_TIMEOUT
    after(clock, 1000)
    with running(progress, "t"):
        assert progress.quiet_s() == 0


def test_what_a_usual_task_takes_follows_what_was_answered(progress: Progress, clock: Clock) -> None:
    assert progress.service_s == 2.0
    silent_try(progress, clock, 50, FailureKind.SERVER_ERROR)
    assert progress.service_s == 2.0
    for _ in range(60):
        with running(progress, "t") as outcome:
            after(clock, 4)
            outcome.failure = None
    assert progress.service_s == pytest.approx(4.0, rel=1e-4)


def test_as_many_tasks_are_named_as_a_beat_may_carry(progress: Progress) -> None:
    tries = {f"t{number}": 0.0 for number in range(MOST_SHOWN + 5)}
    for task_id in tries:
        tries[task_id] = progress.began(task_id)
    assert len(progress.tasks) == MOST_SHOWN
    for task_id, began_s in tries.items():
        progress.ended(task_id, None, began_s)
    assert progress.tasks == ()


def test_a_gate_says_its_state_and_each_change_once() -> None:
    gate, seen, opened = Gate("starting"), [], []
    gate.on_change = lambda: seen.append((gate.state, gate.reasons))
    gate.on_open = lambda: opened.append(True)
    gate.hold("loading")
    gate.release("starting")
    gate.hold("paused")
    gate.hold("paused")
    gate.release("loading")
    assert not gate.is_open
    assert gate.serves
    gate.release("paused")
    gate.release("paused")
    gate.hold("draining")
    assert not gate.serves
    assert [state for state, _ in seen] == ["loading", "loading", "loading", "ready", "ready", "draining"]
    assert opened == [True]
