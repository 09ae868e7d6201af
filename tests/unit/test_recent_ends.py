"""Rates of the last seconds: what is older than the window counts no more."""

from __future__ import annotations

from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, Failure, TaskClosed, TaskFailed, TaskSucceeded, Timing, Try, Usage
from schemas.payload import Payload
from services.core.recent_ends import PoolRates, RecentEnds

RUN = Try(attempt="x", worker="w", pool="a", model="m", started_ms=1)


def success(queue_ms: float) -> TaskSucceeded:
    return TaskSucceeded(
        task_id="t",
        run=RUN,
        ended_ms=1,
        usage=Usage(output_tokens=10),
        answer=Payload(inline={"x": 1}),
        timing=Timing(queue_ms=queue_ms, first_token_ms=2 * queue_ms),
    )


def test_rates_are_of_the_window_and_of_the_pool() -> None:
    ends = RecentEnds(window_s=10.0)
    ends.heard(success(900.0), 0.0)
    for number in range(20):
        ends.heard(success(float(number)), 100.0)
    failure = Failure(kind=FailureKind.RATE_LIMITED, message="busy")
    tried = AttemptFailed(task_id="t", run=RUN, ended_ms=1, usage=Usage(), failure=failure, next="local")
    ends.heard(tried, 101.0)
    ends.heard(TaskFailed(task_id="t", ended_ms=1, failure=failure), 101.0)  # no try ended with it
    ends.heard(TaskClosed(task_id="t", reason="deadline", by="b", ended_ms=1), 101.0)
    assert ends.rates("a", 102.0) == PoolRates(2.0, 20.0, 19.0, 38.0, {"rate_limited": 0.1})
    assert ends.rates("a", 200.0) == PoolRates()
    assert ends.rates("b", 102.0) == PoolRates()
