"""Evidence of a run in which all went well, made by hand: what the tests of the chaos check corrupt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.chaos.evidence import EdgeLine, Evidence, LogRecord
from loadtest.chaos.words import answer_of
from loadtest.kills.client import Told
from loadtest.model_server.attempts import AttemptRecord

BEGAN_S = 1_000_000.0
WORKER = "chat-main-host-77-abcdef"
WORDS = 4


def good() -> Evidence:
    """An answer (r-1), a stream (r-2), a failure (r-3), a hang-up (r-4), a key that was asked for twice (r-5,
    r-5:1), a submission (r-6)."""
    evidence = Evidence()
    for number, stream in ((1, False), (2, True)):
        _succeeded(evidence, f"r-{number}", f"t{number}", f"a{number}", stream=stream)
    _failed(evidence)
    _hung_up(evidence)
    _succeeded(evidence, "r-5", "t5", "a5", stream=False, key="k")
    evidence.told.append(_told("r-5:1", answer_of("a5", WORDS), key="k"))
    evidence.edge.append(EdgeLine("ingress", "r-5:1", "never-sent", None, 200, "ok", "replayed"))
    _ended(evidence, "r-6", "t6", "a6")
    evidence.submitted.append("t6")
    return evidence


def record(
    evidence: Evidence, kind: str, task_id: str, value: Mapping[str, Any], request_id: str = "r-1"
) -> LogRecord:
    """One more record at the end of partition 0, a second after the one before."""
    offset = len(evidence.records)
    stamp_ms = int(BEGAN_S * 1000) + offset * 1000
    made = LogRecord(0, offset, stamp_ms, kind, task_id, request_id, {"task_id": task_id, **value})
    evidence.records.append(made)
    return made


def success(attempt: str, text: str | None = None) -> dict[str, Any]:
    content = answer_of(attempt, WORDS) if text is None else text
    return {**run_of(attempt), "answer": {"inline": {"choices": [{"message": {"content": content}}]}}}


def run_of(attempt: str, worker: str = WORKER) -> dict[str, Any]:
    return {"run": {"attempt": attempt, "worker": worker}}


def called(attempt: str, marker: str, seconds: float = 0.4, outcome: str = "ok") -> AttemptRecord:
    return AttemptRecord(
        attempt=attempt,
        marker=marker,
        path="/v1/chat/completions",
        stream=True,
        started_s=BEGAN_S,
        ended_s=BEGAN_S + seconds,
        seconds=seconds,
        outcome=outcome,
        tokens_in=3,
        tokens_out=WORDS,
        chunks=WORDS,
    )


def ledger_row(attempt: str, task_id: str, **changes: Any) -> dict[str, Any]:
    row = {"attempt": attempt, "task_id": task_id, "worker": WORKER, "state": "ended", "verdict": "outcome"}
    return {**row, "output_tokens": WORDS, **changes}


def _told(request_id: str, text: str, key: str | None = None, *, stream: bool = False) -> Told:
    return Told(
        request_id,
        stream,
        sent_s=BEGAN_S,
        status=200,
        text=text,
        complete=True,
        ended_s=BEGAN_S + 1,
        key=key,
        edge="ingress",
    )


def _ended(evidence: Evidence, request_id: str, task_id: str, attempt: str) -> None:
    evidence.accepted[task_id] = {request_id}
    record(evidence, "AttemptStarted", task_id, run_of(attempt), request_id)
    record(evidence, "TaskSucceeded", task_id, success(attempt), request_id)
    evidence.tasks.append({"task_id": task_id, "state": "succeeded", "reason": None, "attempt": attempt})
    evidence.ledger.append(ledger_row(attempt, task_id))
    evidence.attempts.append(called(attempt, request_id))


def _succeeded(
    evidence: Evidence, request_id: str, task_id: str, attempt: str, *, stream: bool, key: str | None = None
) -> None:
    _ended(evidence, request_id, task_id, attempt)
    evidence.told.append(_told(request_id, answer_of(attempt, WORDS), key, stream=stream))
    evidence.edge.append(EdgeLine("ingress", request_id, task_id, attempt, 200, "ok", None))


def _failed(evidence: Evidence) -> None:
    evidence.accepted["t3"] = {"r-3"}
    failure = {"kind": "server_error", "code": None}
    record(evidence, "TaskFailed", "t3", {**run_of("a3"), "failure": failure}, "r-3")
    row = {"task_id": "t3", "state": "failed", "reason": None, "failure": '{"kind": "server_error"}'}
    evidence.tasks.append({**row, "attempt": "a3"})
    evidence.ledger.append(ledger_row("a3", "t3", verdict="waste", output_tokens=0))
    evidence.attempts.append(called("a3", "r-3", outcome="scripted:status_500"))
    told = Told("r-3", stream=False, sent_s=BEGAN_S, status=502, ended_s=BEGAN_S + 1, edge="ingress")
    told.code = "server_error"
    evidence.told.append(told)
    evidence.edge.append(EdgeLine("ingress", "r-3", "t3", "a3", 502, "backend_error", "server_error"))


def _hung_up(evidence: Evidence) -> None:
    evidence.accepted["t4"] = {"r-4"}
    record(evidence, "TaskClosed", "t4", {"reason": "cancelled"}, "r-4")
    evidence.tasks.append({"task_id": "t4", "state": "closed", "reason": "cancelled", "attempt": None})
    told = Told("r-4", stream=True, sent_s=BEGAN_S, status=200, ended_s=BEGAN_S + 1, edge="ingress")
    told.text, told.hung_up = answer_of("a4", WORDS)[:11], True
    evidence.told.append(told)
    evidence.edge.append(EdgeLine("ingress", "r-4", "t4", None, 200, "cancelled", None))
    evidence.attempts.append(called("a4", "r-4", 0.03, "disconnected"))
