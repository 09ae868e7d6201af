"""The doctor's rules: each complaint has its cause named, and a healthy fleet has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.failures import FailureKind as Kind
from schemas.fleet_messages import PoolOrder, WorkerBeat
from schemas.messages import Failure, RunTask, TaskClosed, TaskFailed, TaskSucceeded, Timing, Try, Usage
from schemas.payload import Payload
from services.core.diagnosis import FEW, BackendEvidence, Evidence, Finding, PoolEvidence, Probe, diagnose
from services.core.diagnosis_fold import happened, pool_evidence
from services.core.diagnosis_rules import RULES
from services.core.fleet import Fleet, Pool
from services.core.fleet_table import FleetTable

GOOD = PoolEvidence("a", 0.5, ready=1, slots=4, configured=4, succeeded=100, queue_ms=(5.0, 20.0))
HEALTHY = Evidence(300.0, [GOOD], bus_ms=2.0)


def found(**changes: Any) -> list[Finding]:
    return diagnose(replace(HEALTHY, pools=[replace(GOOD, **changes)]), RULES)


def test_a_healthy_fleet_has_nothing() -> None:
    assert diagnose(HEALTHY, RULES) == []


def test_a_few_waits_are_no_queue() -> None:
    """The doctor's own probes of an idle pool with one slot wait for each other."""
    assert found(queue_ms=(100.0, 900.0), succeeded=FEW - 1) == []


@pytest.mark.parametrize(
    ("changes", "symptom", "part_of_cause"),
    [
        ({"mode": "paused", "queued": 3}, "slow", "order says paused"),
        ({"dead": ("w1",)}, "down", "dead or stalled: w1"),
        ({"ready": 0, "loading": 1, "slots": 0}, "down", "a model that loads"),
        ({"ready": 0, "slots": 0}, "down", "no worker"),
        ({"queue_ms": (100.0, 900.0), "in_flight": 4}, "slow", "all 4 slots work"),
        ({"queue_ms": (100.0, 900.0), "slots": 2}, "slow", "only 2 of 4 tries"),
        ({"queue_ms": (100.0, 900.0), "slots": 2, "device": "gpu"}, "slow", "device gpu is shared"),
        ({"queue_ms": (100.0, 900.0), "in_flight": 1}, "slow", "only 1 of 4 slots work"),
        ({"first_token_ms": (4000.0, 9000.0)}, "slow", "the first token takes 9.0 s"),
        ({"decode_ms": (4000.0, 9000.0)}, "slow", "answers take 9.0 s"),
        ({"backends": (BackendEvidence("http://x", "slow", "closed"),)}, "slow", "slower than it used to"),
        (
            {"backends": (BackendEvidence("http://x", "unavailable", "open"),)},
            "fails_under_load",
            "left alone",
        ),
        ({"cut": 40}, "poor", "40 of 100 answers were cut"),
        ({"failures": {Kind.BAD_ANSWER: 30}}, "poor", "30 of 130 answers were empty"),
        ({"failures": {Kind.INTERRUPTED: 30}}, "broken_streams", "broke off 30"),
        ({"failures": {Kind.IDLE_TIMEOUT: 30}}, "broken_streams", "fell silent"),
        ({"failures": {Kind.RATE_LIMITED: 30}}, "fails_under_load", "refused 30 of 130"),
        ({"failures": {Kind.DEADLINE: 30}}, "fails_under_load", "too late"),
        ({"failures": {Kind.SERVER_ERROR: 30}}, "fails_under_load", "failed 30 of 130"),
        ({"failures": {Kind.KEY_REFUSED: 1}}, "down", "refused our key"),
    ],
)
def test_each_trouble_is_told_from_the_others(
    changes: dict[str, Any], symptom: str, part_of_cause: str
) -> None:
    (first, *_) = found(**changes)
    assert (first.symptom, first.where) == (symptom, "a")
    assert part_of_cause in first.cause
    assert first.cure


@pytest.mark.parametrize(
    ("changes", "symptom", "where"),
    [
        ({"bus_ms": None}, "down", "broker"),
        ({"bus_ms": 400.0}, "slow", "broker"),
        ({"database_up": False}, "down", "database"),
        ({"edge_up": False}, "down", "ingress"),
        ({"topics_wrong": ("x",)}, "down", "topics"),
        ({"books_behind": 90_000}, "slow", "bookkeeper"),
        ({"lost_streams": 2}, "broken_streams", "workers"),
        ({"shared_sessions": ("s",)}, "mixed_sessions", "callers"),
        ({"sessions": 10, "moved_sessions": ("s", "t")}, "mixed_sessions", "placement"),
        ({"probes": [Probe("a", False, 1.0, mixed=True)]}, "mixed_sessions", "a"),
        ({"probes": [Probe("a", False, 1.0, said="status 500")]}, "down", "a"),
    ],
)
def test_what_concerns_the_whole_fleet(changes: dict[str, Any], symptom: str, where: str) -> None:
    (first, *_) = diagnose(replace(HEALTHY, **changes), RULES)
    assert (first.symptom, first.where) == (symptom, where)


def test_auto_went_to_the_weaker_pool_because_the_better_one_was_out() -> None:
    weak, strong = replace(GOOD, auto=50), replace(GOOD, name="b", quality=0.9, mode="paused")
    causes = [
        one.cause for one in diagnose(replace(HEALTHY, pools=[weak, strong]), RULES) if one.symptom == "poor"
    ]
    assert causes == ["50 calls went to this weaker pool while b was out of service"]


def run(worker: str) -> Try:
    return Try(attempt=f"at-{worker}", worker=worker, pool="a", model="m", started_ms=1)


def success(task_id: str, worker: str, finish: str = "stop") -> TaskSucceeded:
    answer = Payload(inline={"choices": [{"finish_reason": finish}]})
    timing = Timing(queue_ms=10, first_token_ms=20, decode_ms=30)
    return TaskSucceeded(
        task_id=task_id, run=run(worker), ended_ms=2, usage=Usage(), answer=answer, timing=timing
    )


def task(task_id: str, session: str | None = None, tenant: str = "default") -> RunTask:
    body = Payload(inline={"x": 1})
    return RunTask(
        task_id=task_id, pool="a", model="auto", session_id=session, tenant=tenant, arrived_ms=1, body=body
    )


def test_the_log_is_folded_by_pool_and_by_session() -> None:
    failed = TaskFailed(
        task_id="4", ended_ms=3, failure=Failure(kind=Kind.DEADLINE, message="late"), run=run("w1")
    )
    cancelled = TaskFailed(task_id="5", ended_ms=3, failure=Failure(kind=Kind.CANCELLED, message="gone"))
    closed = TaskClosed(task_id="6", reason="interrupted", by="x", ended_ms=3)
    results = [
        success("1", "w1"),
        success("2", "w2", "length"),
        success("3", "w1"),
        failed,
        cancelled,
        closed,
    ]
    seen = happened(
        results, [task("1", "s"), task("2", "s"), task("3", "t", "acme"), task("9", "t", "other")]
    )
    assert (seen.sessions, seen.moved_sessions, seen.shared_sessions) == (1, ("s",), ("t",))
    assert seen.lost_streams == 1
    table = FleetTable()
    beat = WorkerBeat(sent_ms=1, worker="w1", pool="a", state="ready", slots=3, in_flight=1, queued=2)
    table.apply("worker/w1", beat, 100.0)
    table.apply("worker/w2", beat.model_copy(update={"worker": "w2"}), 10.0)
    table.apply("pool/a", PoolOrder(sent_ms=1, pool="a", mode="draining"), 100.0)
    (pool,) = pool_evidence(Fleet(pools=(Pool(name="a", model="m", slots=4),)), table, 101.0, seen)
    assert (pool.succeeded, pool.cut, pool.auto, pool.failures) == (3, 1, 3, {Kind.DEADLINE: 1})
    assert (pool.ready, pool.dead, pool.slots, pool.configured, pool.mode) == (1, ("w2",), 3, 4, "draining")
    assert (pool.queue_ms, pool.first_token_ms, pool.decode_ms) == ((10, 10), (20, 20), (30, 30))
