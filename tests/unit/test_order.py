"""Named policies of a tenant's own tasks: what each puts first."""

from __future__ import annotations

import pytest

from services.core.fleet import DEFAULT_WEIGHTS
from services.core.order import AHEAD, RANKS, Known, OrderName
from services.core.service_times import ServiceTimes
from tests.held_tasks import backlog_with, waiting

TASKS = {
    "old": Known(arrived_s=1.0, deadline_s=100.0, tokens=50.0, service_s=5.0),
    "short": Known(arrived_s=2.0, deadline_s=100.0, tokens=10.0, service_s=1.0),
    "urgent": Known(arrived_s=3.0, deadline_s=20.0, tokens=90.0, service_s=9.0),
}


@pytest.mark.parametrize(("name", "first"), [("fcfs", "old"), ("sjf", "short"), ("slack", "urgent")])
def test_what_a_policy_puts_first(name: OrderName, first: str) -> None:
    assert min(TASKS, key=lambda task: RANKS[name](TASKS[task])) == first
    assert all(RANKS[name](known) > AHEAD for known in TASKS.values())


@pytest.mark.parametrize(("name", "order"), [("fcfs", "abc"), ("sjf", "cab"), ("slack", "bca")])
def test_the_backlog_starts_a_tenants_tasks_by_the_policy(name: OrderName, order: str) -> None:
    backlog = backlog_with(DEFAULT_WEIGHTS, name)
    backlog.push(waiting("a", written_s=1, deadline_s=900, tokens=50.0), 5.0)
    backlog.push(waiting("b", written_s=2, deadline_s=100, tokens=90.0), 5.0)
    backlog.push(waiting("c", written_s=3, deadline_s=500, tokens=10.0), 5.0)
    started = [backlog.pop(5.0) for _ in range(3)]
    assert "".join(held.task_id for held in started if held) == order


def test_an_evicted_task_goes_before_the_others_of_its_tenant() -> None:
    backlog = backlog_with(DEFAULT_WEIGHTS, "fcfs")
    backlog.push(waiting("early", written_s=1), 5.0)
    backlog.push(waiting("evicted", written_s=9), 5.0, evicted=True)
    started = backlog.pop(5.0)
    assert started is not None
    assert started.task_id == "evicted"


def test_service_times_are_by_token_where_tokens_are_told() -> None:
    times = ServiceTimes(prior_s=2.0)
    assert times.expected_s("batch", 100.0) == 2.0
    times.saw("batch", 100.0, 90.0, 4.0)
    assert times.expected_s("batch", 50.0) == 2.0
    assert times.expected_s("batch", 0.0) == 4.0
    assert times.usual_tokens("batch", 1.0) == 90.0
    assert times.expected_s("interactive", 0.0) == 2.0


def test_who_outlives_its_prediction_is_not_taken_for_about_to_end() -> None:
    times = ServiceTimes(prior_s=2.0)
    assert times.rest_s("batch", 0.0, 0.5) == 1.5
    assert times.rest_s("batch", 0.0, 10.0) == 5.0
