"""The rows that the log is folded into, and what the bookkeeper then owes to the bus.

Rows are named tuples in the order of their columns: they go to the database driver as they are, thousands at
a time. A row that a fold did not change is the same object afterwards; only changed rows are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from schemas.messages import CancelTask, Envelope, Message, TaskClosed


class LedgerRow(NamedTuple):
    """One attempt. `state` and `verdict` as in `table`; tokens and USD are zero until it ended.

    ordinal: the place of the attempt among its task's, in the order of the log (clocks of workers differ).
    charged: a failed try that counts against its task. deadline_ms: 0 where no record said it.
    """

    attempt: str
    task_id: str
    partition: int
    ordinal: int
    tenant: str
    worker: str
    pool: str
    model: str
    model_version: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float
    estimated: bool
    state: str
    verdict: str | None
    charged: bool
    started_ms: int
    ended_ms: int | None
    deadline_ms: int


class TaskRow(NamedTuple):
    """An ended task: its first terminal record.

    reason: why it was closed, None for the others. failure: JSON of `schemas.messages.Failure`.
    answer: JSON of `schemas.payload.Payload`, only where the caller may ask again, until answer_expires_ms.
    """

    task_id: str
    request_id: str = ""
    tenant: str = "default"
    kind: str | None = None
    pool: str = ""
    model: str = ""
    state: str = "closed"
    reason: str | None = None
    failure: str | None = None
    arrived_ms: int | None = None
    ended_ms: int = 0
    attempt: str | None = None
    answer: bytes | None = None
    answer_expires_ms: int | None = None


class ParkedRow(NamedTuple):
    """A task that a row holds, or the mark of one that was swept or moved.

    attempt, final, stamp_ms: whose record wrote it, whether it was the attempt's last, its time.
    seen: all attempts that ever parked or moved the task, in the order of the log; the last is `attempt`.
    lane, headers (JSON), value: the envelope; None keeps what is stored.
    """

    task_id: str
    partition: int
    state: str
    attempt: str
    final: bool
    stamp_ms: int
    due_ms: int
    deadline_ms: int
    holder: str | None
    seen: tuple[str, ...]
    lane: str | None = None
    headers: str | None = None
    value: bytes | None = None


class TaskRows(NamedTuple):
    """All rows of one task; `ledger` in the order of `ordinal`."""

    outcome: TaskRow | None = None
    ledger: tuple[LedgerRow, ...] = ()
    parked: ParkedRow | None = None


NO_ROWS = TaskRows()


class LogEntry(NamedTuple):
    """A record of `results`: its partition, record time, and what its headers add to the message."""

    partition: int
    stamp_ms: int
    request_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class LifeLimits:
    """max_tries: the cap above which a task is poison. answer_ms: how long answers are kept."""

    max_tries: int = 3
    answer_ms: int = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class SendClosed:
    """Owed to `results`: the task is over without a worker's word."""

    partition: int
    request_id: str
    closed: TaskClosed


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Owed to `control`."""

    cancel: CancelTask


@dataclass(frozen=True, slots=True)
class SendDead:
    """Owed to `tasks.dead`: a task that only a row holds, and that nobody will run again."""

    task_id: str
    envelope: Envelope
    reason: str


Effect = SendClosed | SendCancel | SendDead


def owed_key(effect: Effect) -> tuple[str, ...]:
    """The same for effects of which one is enough."""
    if isinstance(effect, SendClosed):
        return "closed", effect.closed.task_id
    if isinstance(effect, SendCancel):
        return "cancel", effect.cancel.task_id, effect.cancel.attempt or "", effect.cancel.reason
    return "dead", effect.task_id
