"""Records of one task's life, as tests write them."""

from __future__ import annotations

from typing import Literal

from schemas.failures import FailureKind
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CloseReason,
    Envelope,
    Failure,
    TaskClosed,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
    Timing,
    Try,
    Usage,
)
from schemas.payload import Payload

DEADLINE_MS = 1_000_000
USAGE = Usage(input_tokens=10, output_tokens=5, cost_usd=0.01)


def run_of(attempt: str, worker: str = "w1") -> Try:
    return Try(attempt=attempt, worker=worker, pool="chat-fast", model="small", started_ms=50)


def envelope_of(task: str, text: str = "") -> Envelope:
    headers = {
        "type": "RunTask",
        "v": "1",
        "request_id": f"r-{task}",
        "deadline": str(DEADLINE_MS),
        "tries": "1",
    }
    return Envelope(
        lane="t.tasks.chat-fast.interactive", headers=headers, value=text or f'{{"task":"{task}"}}'
    )


def started(task: str, attempt: str, *, redelivered: bool = False, worker: str = "w1") -> AttemptStarted:
    run = run_of(attempt, worker)
    return AttemptStarted(task_id=task, run=run, deadline_ms=DEADLINE_MS, redelivered=redelivered)


def failed(
    task: str,
    attempt: str,
    next_: Literal["local", "parked", "moved", "closed"] = "local",
    *,
    charged: bool = True,
    due_ms: int | None = None,
    kind: FailureKind = FailureKind.INTERRUPTED,
) -> AttemptFailed:
    return AttemptFailed(
        task_id=task,
        run=run_of(attempt),
        ended_ms=80,
        usage=USAGE,
        failure=Failure(kind=kind, message="it broke"),
        next=next_,
        charged=charged,
        due_ms=due_ms,
        envelope=envelope_of(task, f'{{"by":"{attempt}"}}') if next_ == "parked" else None,
    )


def parked(
    task: str, attempt: str, holder: str = "w1", *, renewal: bool = False, due_ms: int = 0
) -> TaskParked:
    return TaskParked(
        task_id=task,
        attempt=attempt,
        holder=holder,
        due_ms=due_ms,
        deadline_ms=DEADLINE_MS,
        envelope=None if renewal else envelope_of(task),
    )


def succeeded(task: str, attempt: str, *, keep_answer: bool = False) -> TaskSucceeded:
    return TaskSucceeded(
        task_id=task,
        run=run_of(attempt),
        ended_ms=90,
        usage=USAGE,
        answer=Payload(inline={"by": attempt}),
        keep_answer=keep_answer,
        timing=Timing(queue_ms=20),
    )


def gave_up(task: str, attempt: str, kind: FailureKind = FailureKind.INTERRUPTED) -> TaskFailed:
    return TaskFailed(
        task_id=task,
        run=run_of(attempt),
        ended_ms=90,
        usage=USAGE,
        failure=Failure(kind=kind, message="it broke"),
    )


def closed(task: str, reason: CloseReason = "cancelled") -> TaskClosed:
    return TaskClosed(task_id=task, reason=reason, by="owner", ended_ms=90)
