"""One record over the rows of its task.

Law: applying a record that was applied before changes nothing, whatever came after it; so a reader may
begin again from any earlier offset. Effects are derived from the rows, so a re-read owes them again: a crash
between the transaction and the publishing cannot lose one.
"""

from __future__ import annotations

import orjson

from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CancelTask,
    Failure,
    Message,
    TaskClosed,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
)
from schemas.payload import Payload
from services.core.life import ledger as ledger_law
from services.core.life import parked as parked_law
from services.core.life.rows import (
    Effect,
    LedgerRow,
    LifeLimits,
    LogEntry,
    ParkedRow,
    SendCancel,
    SendClosed,
    SendDead,
    TaskRow,
    TaskRows,
)
from services.core.life.table import CLOSE_FAILURES, LedgerStep, law_of


def fold(rows: TaskRows, entry: LogEntry, limits: LifeLimits) -> tuple[TaskRows, tuple[Effect, ...]]:
    """The rows after the record, and what is owed to the bus because of it."""
    record = entry.message
    law = law_of(record)
    if law is None:
        return rows, ()
    ledger = rows.ledger if law.ledger is None else _ledger(rows, entry, law.ledger, record)
    if law.terminal:
        outcome = rows.outcome or _outcome(ledger, entry, limits)
        return TaskRows(outcome, ledger, None), ()
    parked = rows.parked
    effects: tuple[Effect, ...] = ()
    if law.parking is not None:
        parked, effects = _parked(rows, entry, record)
    after = TaskRows(rows.outcome, ledger, parked)
    if len(ledger) > limits.max_tries and rows.outcome is None:
        effects = (*effects, *_poison(after, entry, limits))
    return after, effects


def _ledger(rows: TaskRows, entry: LogEntry, step: LedgerStep, record: Message) -> tuple[LedgerRow, ...]:
    if step is LedgerStep.OPEN and isinstance(record, AttemptStarted):
        return ledger_law.opened(rows, entry, record)
    if isinstance(record, AttemptFailed | TaskSucceeded | TaskFailed):
        return ledger_law.ended(rows, entry, record)
    return rows.ledger


def _parked(rows: TaskRows, entry: LogEntry, record: Message) -> tuple[ParkedRow | None, tuple[Effect, ...]]:
    if not isinstance(record, AttemptFailed | TaskParked):
        return rows.parked, ()
    told = parked_law.answer(rows.outcome, rows.parked, record)
    effects = () if told is None else (told,)
    if rows.outcome is not None:
        return rows.parked, effects  # nothing parks after a terminal record
    return parked_law.parked(rows.parked, entry, record), effects


def _poison(rows: TaskRows, entry: LogEntry, limits: LifeLimits) -> tuple[Effect, ...]:
    """Close a task whose tries ended lost or charged more often than the cap."""
    if ledger_law.strikes(rows.ledger) <= limits.max_tries:
        return ()
    record = entry.message
    deadline_ms = max(row.deadline_ms for row in rows.ledger)
    closed = TaskClosed(
        task_id=record.task_id,
        tenant=rows.ledger[0].tenant,
        reason="poison",
        by="bookkeeper",
        ended_ms=entry.stamp_ms,
    )
    cancel = CancelTask(
        task_id=record.task_id,
        deadline_ms=deadline_ms or entry.stamp_ms + parked_law.UNSAID_DEADLINE_MS,
        reason="poison",
    )
    effects: tuple[Effect, ...] = (
        SendClosed(entry.partition, entry.request_id, closed),
        SendCancel(cancel),
    )
    if isinstance(record, AttemptFailed) and record.next == "parked" and record.envelope is not None:
        # Only the row holds it, so no worker will meet the cancel and write the dead letter.
        effects = (*effects, SendDead(record.task_id, record.envelope, "poison"))
    return effects


def _outcome(ledger: tuple[LedgerRow, ...], entry: LogEntry, limits: LifeLimits) -> TaskRow:
    record = entry.message
    if isinstance(record, TaskSucceeded):
        return _succeeded(record, entry, limits)
    if isinstance(record, TaskFailed):
        run, failure = record.run, record.failure
        return TaskRow(
            record.task_id,
            entry.request_id,
            record.tenant,
            record.kind,
            run.pool if run else "",
            run.model if run else "",
            "failed",
            None,
            _failure_json(failure),
            _arrived_ms(record),
            record.ended_ms,
            run.attempt if run else None,
        )
    assert isinstance(record, TaskClosed)  # noqa: S101 - the table has no other terminal record
    last = ledger[-1] if ledger else None
    return TaskRow(
        record.task_id,
        entry.request_id,
        record.tenant,
        None,
        last.pool if last else "",
        last.model if last else "",
        "closed",
        record.reason,
        _failure_json(CLOSE_FAILURES[record.reason]),
        None,
        record.ended_ms,
        None,
    )


def _succeeded(record: TaskSucceeded, entry: LogEntry, limits: LifeLimits) -> TaskRow:
    run = record.run
    kept = record.keep_answer
    return TaskRow(
        record.task_id,
        entry.request_id,
        record.tenant,
        record.kind,
        run.pool,
        run.model,
        "succeeded",
        None,
        None,
        _arrived_ms(record),
        record.ended_ms,
        run.attempt,
        _payload_json(record.answer) if kept else None,
        entry.stamp_ms + limits.answer_ms if kept else None,
    )


def _arrived_ms(record: TaskSucceeded | TaskFailed) -> int | None:
    """When the lane record was written, as far as the try's timing says it."""
    if record.run is None:
        return None
    return record.run.started_ms - int(record.timing.queue_ms)


def _failure_json(failure: Failure) -> str:
    return failure.model_dump_json(exclude_none=True)


def _payload_json(payload: Payload) -> bytes:
    return orjson.dumps(payload.model_dump())
