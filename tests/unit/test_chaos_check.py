"""The check of a chaos run can fail: evidence without fault passes, and each corruption is found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadtest.chaos.check import check
from loadtest.chaos.evidence import Death, Evidence
from loadtest.chaos.recovery import recoveries
from loadtest.chaos.words import answer_of, heard
from tests.unit.chaos_evidence import BEGAN_S, WORDS, called, good, ledger_row, record, run_of, success

Corruption = Callable[[Evidence], Any]


def _breaches(evidence: Evidence) -> set[tuple[str, str]]:
    return {(breach.kind, breach.subject) for breach in check(evidence).breaches}


def _told(evidence: Evidence, request_id: str) -> Any:
    return next(one for one in evidence.told if one.request_id == request_id)


def _row(rows: list[Any], key: str, value: str) -> Any:
    return next(row for row in rows if row[key] == value)


def _replace_records(evidence: Evidence, task_id: str, kind: str, **changes: Any) -> None:
    evidence.records = [
        one._replace(**changes) if (one.task_id, one.kind) == (task_id, kind) else one
        for one in evidence.records
    ]


def _edge(evidence: Evidence, request_id: str, **changes: Any) -> None:
    evidence.edge = [
        line._replace(**changes) if line.request_id == request_id else line for line in evidence.edge
    ]


def _key_twice(evidence: Evidence) -> None:
    evidence.accepted["t5b"] = {"r-5:1"}
    record(evidence, "TaskSucceeded", "t5b", success("a5b"), "r-5:1")
    evidence.tasks.append({"task_id": "t5b", "state": "succeeded", "reason": None, "attempt": "a5b"})
    evidence.ledger.append(ledger_row("a5b", "t5b"))


def _told_text(request_id: str, text: str) -> Corruption:
    return lambda evidence: setattr(_told(evidence, request_id), "text", text)


def _without(rows: str, key: str, value: str) -> Corruption:
    return lambda evidence: setattr(
        evidence, rows, [row for row in getattr(evidence, rows) if row[key] != value]
    )


def _error(request_id: str, code: str) -> Corruption:
    def told(evidence: Evidence) -> None:
        one = _told(evidence, request_id)
        one.complete, one.status, one.code, one.text = False, 502, code, ""
        _edge(evidence, request_id, http_status=502, status="backend_error", reason=code)

    return told


def _broke_off(evidence: Evidence) -> None:
    one = _told(evidence, "r-2")
    one.complete, one.text = False, answer_of("a2", WORDS)[:10]


CORRUPTIONS: dict[str, tuple[Corruption, str, str]] = {
    "an accepted task without an end": (
        lambda e: setattr(e, "records", [r for r in e.records if r.task_id != "t1"]),
        "never ended",
        "t1",
    ),
    "a submission that vanished": (lambda e: e.submitted.append("t9"), "never ended", "t9"),
    "records of a task in two logs": (
        lambda e: _replace_records(e, "t1", "TaskSucceeded", partition=1),
        "two logs",
        "t1",
    ),
    "an ended task without a row": (_without("tasks", "task_id", "t2"), "no row", "t2"),
    "a task with two rows": (lambda e: e.tasks.append(dict(e.tasks[0])), "double row", "t1"),
    "a row with another outcome": (
        lambda e: _row(e.tasks, "task_id", "t1").update(state="failed", failure='{"kind": "reset"}'),
        "row disagrees",
        "t1",
    ),
    "a row with another attempt": (
        lambda e: _row(e.tasks, "task_id", "t1").update(attempt="a2"),
        "row disagrees",
        "t1",
    ),
    "a row with another failure": (
        lambda e: _row(e.tasks, "task_id", "t3").update(failure='{"kind": "reset"}'),
        "row disagrees",
        "t3",
    ),
    "an ended task that a row still holds": (
        lambda e: e.parked.append({"task_id": "t1", "state": "parked"}),
        "still parked",
        "t1",
    ),
    "an attempt without a ledger row": (_without("ledger", "attempt", "a3"), "no ledger row", "a3"),
    "an attempt with two rows": (lambda e: e.ledger.append(ledger_row("a1", "t1")), "double row", "a1"),
    "an attempt that the model server saw twice": (
        lambda e: e.attempts.append(called("a1", "r-1")),
        "copied attempt",
        "a1",
    ),
    "a row of another task": (
        lambda e: _row(e.ledger, "attempt", "a3").update(task_id="t1"),
        "row of another task",
        "a3",
    ),
    "tokens that were not sent": (
        lambda e: _row(e.ledger, "attempt", "a2").update(output_tokens=WORDS + 1),
        "tokens miscounted",
        "a2",
    ),
    "a row that stays open": (
        lambda e: _row(e.ledger, "attempt", "a3").update(state="open"),
        "open row",
        "a3",
    ),
    "a success that is owed to nobody": (
        lambda e: _row(e.ledger, "attempt", "a1").update(verdict="waste"),
        "wrong verdict",
        "t1",
    ),
    "two attempts in one stream": (
        _told_text("r-2", f"{answer_of('a1', WORDS)[:12]}{answer_of('a2', WORDS)[12:]}"),
        "spliced",
        "r-2",
    ),
    "a stream with a gap": (_told_text("r-2", "a2.0/4 a2.2/4 a2.3/4"), "spliced", "r-2"),
    "a stream that repeats": (_told_text("r-2", "a2.0/4 a2.0/4 a2.1/4 a2.2/4 a2.3/4"), "spliced", "r-2"),
    "a success that is cut short": (_told_text("r-2", "a2.0/4 a2.1/4"), "cut short", "r-2"),
    "a stream that ends without a word": (_broke_off, "told nothing", "r-2"),
    "an answer that is another's": (
        _told_text("r-1", answer_of("a2", WORDS)),
        "told another text",
        "r-1",
    ),
    "success told of a failure": (
        lambda e: setattr(_told(e, "r-3"), "complete", True),
        "told another outcome",
        "r-3",
    ),
    "failure told of a success": (_error("r-1", "server_error"), "told another outcome", "r-1"),
    "another failure than the log's": (_error("r-3", "reset"), "told another outcome", "r-3"),
    "an interruption told of the attempt that won": (
        _error("r-2", "stream_interrupted"),
        "told another outcome",
        "r-2",
    ),
    "a call that the ingress did not note": (
        lambda e: setattr(e, "edge", [line for line in e.edge if line.request_id != "r-1"]),
        "no line",
        "r-1",
    ),
    "an ingress that noted another attempt": (
        lambda e: _edge(e, "r-1", attempt="a2"),
        "ingress disagrees",
        "r-1",
    ),
    "an ingress that noted another status": (
        lambda e: _edge(e, "r-1", http_status=500),
        "ingress disagrees",
        "r-1",
    ),
    "an ingress that noted another reason": (
        lambda e: _edge(e, "r-3", reason="reset"),
        "ingress disagrees",
        "r-3",
    ),
    "a key that ran twice": (_key_twice, "key ran twice", "k"),
}


def test_evidence_without_fault_has_no_breach() -> None:
    verdict = check(good())
    assert verdict.breaches == ()
    assert verdict.counts["accepted"] == 6
    assert verdict.counts["attempts under 50 ms without a row"] == 1
    assert verdict.outcomes == {"succeeded": 4, "failed server_error": 1, "closed cancelled": 1}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_found(name: str) -> None:
    corrupt, kind, subject = CORRUPTIONS[name]
    evidence = good()
    corrupt(evidence)
    assert (kind, subject) in _breaches(evidence)


def test_later_terminal_records_change_nothing() -> None:
    evidence = good()
    record(evidence, "TaskClosed", "t1", {"reason": "cancelled"})
    verdict = check(evidence)
    assert verdict.breaches == ()
    assert verdict.counts["tasks with later terminal records"] == 1


def test_the_first_terminal_record_is_the_outcome() -> None:
    """Read the other way round, the same log is another one."""
    evidence = good()
    record(evidence, "TaskClosed", "t1", {"reason": "cancelled"})
    evidence.records.reverse()
    assert ("row disagrees", "t1") in _breaches(evidence)


def test_a_killed_worker_may_leave_a_row_open_and_an_ingress_a_call_unsaid() -> None:
    evidence = good()
    _row(evidence.ledger, "attempt", "a3")["state"] = "open"
    _broke_off(evidence)
    evidence.edge = [line for line in evidence.edge if line.request_id != "r-2"]
    at_s = BEGAN_S + 0.5
    evidence.deaths = (Death("worker-chat-main", 77, at_s), Death("ingress", 78, at_s))
    assert check(evidence).breaches == ()


def test_who_finds_no_ingress_was_told_nothing_only_if_it_died_before() -> None:
    evidence = good()
    _broke_off(evidence)
    one = _told(evidence, "r-2")
    one.status, one.text, one.reached = 0, "", False
    evidence.edge = [line for line in evidence.edge if line.request_id != "r-2"]
    assert _breaches(evidence) == {("told nothing", "r-2")}
    evidence.deaths = (Death("ingress", 78, BEGAN_S - 30),)
    assert check(evidence).breaches == ()
    one.reached = True
    assert _breaches(evidence) == {("told nothing", "r-2")}


def test_a_row_that_went_with_worker_and_broker_has_a_name_of_its_own() -> None:
    evidence = good()
    _without("ledger", "attempt", "a3")(evidence)
    evidence.deaths = (Death("worker-chat-main", 77, BEGAN_S + 0.5),)
    evidence.log_away = ((BEGAN_S - 1, BEGAN_S + 3),)
    assert _breaches(evidence) == {("lost with worker and log", "a3")}
    evidence.log_away = ((BEGAN_S + 1, BEGAN_S + 3),)
    assert _breaches(evidence) == {("no ledger row", "a3")}


def test_a_try_is_as_old_as_its_worker_let_it_become() -> None:
    """The model server notices later that nobody listens."""
    evidence = good()
    _without("ledger", "attempt", "a3")(evidence)
    cut = _row_of_attempt(evidence, "a3")
    evidence.attempts[cut] = called("a3", "r-3", outcome="disconnected")
    evidence.deaths = (Death("worker-chat-main", 77, BEGAN_S + 0.03),)
    assert _breaches(evidence) == set()
    evidence.deaths = (Death("ingress", 77, BEGAN_S + 0.03), Death("worker-chat-main", 78, BEGAN_S + 0.06))
    assert _breaches(evidence) == {("no ledger row", "a3")}
    evidence.attempts[cut] = called("a3", "r-3", outcome="scripted:status_500")
    evidence.deaths = (Death("worker-chat-main", 77, BEGAN_S + 0.03),)
    assert _breaches(evidence) == {("no ledger row", "a3")}  # it ended by itself, later


def _row_of_attempt(evidence: Evidence, attempt: str) -> int:
    return next(place for place, one in enumerate(evidence.attempts) if one.attempt == attempt)


def test_a_text_says_whose_it_is() -> None:
    whole = answer_of("0192-ab", 3)
    assert heard(whole).attempt == "0192-ab"
    assert heard(whole).whole
    assert heard("") == heard("0192-ab.0/")
    for end in range(len(whole)):
        assert heard(whole[:end]).fault is None
        assert not heard(whole[:end]).whole
    assert heard("what no model said").fault is not None


def test_recovery_is_from_the_kill_to_the_next_start_of_what_ran() -> None:
    """What had failed, ended or was another worker's when the kill came is not waited for."""
    evidence = Evidence(deaths=(Death("worker", 77, BEGAN_S + 3.5),))
    record(evidence, "AttemptStarted", "ran", run_of("a1"))
    record(evidence, "AttemptStarted", "ended", run_of("a2"))
    record(evidence, "TaskSucceeded", "ended", success("a2"))
    record(evidence, "AttemptStarted", "other", run_of("a3", "chat-main-host-78-abcdef"))
    record(evidence, "AttemptStarted", "ran", run_of("a4", "chat-main-host-78-abcdef"))
    record(evidence, "AttemptStarted", "other", run_of("a5"))
    assert recoveries(evidence) == [pytest.approx(0.5)]
