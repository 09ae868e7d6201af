"""What a record does to the parked row of its task.

Order among the records of different attempts is the order of the log, remembered in `seen`: the clocks of two
workers may disagree, and a task whose newest park looked older than its last one would be lost. Within one
attempt the record time orders, and AttemptFailed is the last word.
"""

from __future__ import annotations

import orjson

from schemas.messages import AttemptFailed, CancelTask, Envelope, TaskParked
from services.core.life.rows import LogEntry, ParkedRow, SendCancel, TaskRow
from services.core.life.table import PARKED_MOVES, ParkedState, ParkedStep

UNSAID_DEADLINE_MS = 24 * 3600 * 1000
"""From its record on, for a park whose envelope does not say its deadline."""


def parked(row: ParkedRow | None, entry: LogEntry, record: AttemptFailed | TaskParked) -> ParkedRow | None:
    """The row after a record that parks or moves the task; the same object when nothing changes."""
    attempt = record.run.attempt if isinstance(record, AttemptFailed) else record.attempt
    step = _step(row, attempt, record)
    if step is None or (step is ParkedStep.PARK_NEW and record.envelope is None):
        return row
    if row is not None and not _newer(row, step, entry, record):
        return row
    state = PARKED_MOVES.get((None if row is None else ParkedState(row.state), step))
    if state is None:
        return row
    return _written(row, state, attempt, entry, record)


def answer(
    outcome: TaskRow | None, row: ParkedRow | None, record: AttemptFailed | TaskParked
) -> SendCancel | None:
    """What a renewal is told that came from an attempt which no longer holds its task."""
    if not isinstance(record, TaskParked) or record.envelope is not None:
        return None
    if outcome is not None:
        # The whole task: a cancel of one attempt must not take the place of a tombstone in a compacted topic.
        reason = "poison" if outcome.reason == "poison" else "superseded"
        cancel = CancelTask(task_id=record.task_id, deadline_ms=record.deadline_ms, reason=reason)
        return SendCancel(cancel)
    if row is None or (row.attempt == record.attempt and row.state == ParkedState.PARKED):
        return None
    return SendCancel(
        CancelTask(
            task_id=record.task_id,
            attempt=record.attempt,
            deadline_ms=record.deadline_ms,
            reason="superseded",
        )
    )


def _step(row: ParkedRow | None, attempt: str, record: AttemptFailed | TaskParked) -> ParkedStep | None:
    moves = isinstance(record, AttemptFailed) and record.next == "moved"
    if row is None or attempt not in row.seen:
        return ParkedStep.MOVE_NEW if moves else ParkedStep.PARK_NEW
    if attempt != row.attempt:
        return None  # a later attempt has the row: an older record changes nothing
    if moves:
        return ParkedStep.MOVE_OWN
    return ParkedStep.PARK_OWN if _envelope_or_end(record) else ParkedStep.RENEW


def _envelope_or_end(record: AttemptFailed | TaskParked) -> bool:
    return isinstance(record, AttemptFailed) or record.envelope is not None


def _newer(row: ParkedRow, step: ParkedStep, entry: LogEntry, record: AttemptFailed | TaskParked) -> bool:
    if step in (ParkedStep.PARK_NEW, ParkedStep.MOVE_NEW):
        return True
    if row.final:
        return False
    return isinstance(record, AttemptFailed) or entry.stamp_ms > row.stamp_ms


def _written(
    row: ParkedRow | None,
    state: ParkedState,
    attempt: str,
    entry: LogEntry,
    record: AttemptFailed | TaskParked,
) -> ParkedRow:
    seen = () if row is None else row.seen
    envelope = record.envelope
    holder, due_ms = None, entry.stamp_ms
    if isinstance(record, TaskParked):
        holder, due_ms = record.holder, record.due_ms
    elif record.due_ms is not None:
        due_ms = record.due_ms
    return ParkedRow(
        task_id=record.task_id,
        partition=entry.partition,
        state=state.value,
        attempt=attempt,
        final=isinstance(record, AttemptFailed),
        stamp_ms=entry.stamp_ms,
        due_ms=due_ms,
        deadline_ms=_deadline_ms(row, entry, record),
        holder=holder,
        seen=seen if attempt in seen else (*seen, attempt),
        lane=envelope.lane if envelope else None if row is None else row.lane,
        headers=orjson.dumps(envelope.headers).decode() if envelope else None if row is None else row.headers,
        value=envelope.value.encode() if envelope else None if row is None else row.value,
    )


def _deadline_ms(row: ParkedRow | None, entry: LogEntry, record: AttemptFailed | TaskParked) -> int:
    if isinstance(record, TaskParked):
        return record.deadline_ms
    said = _said_deadline_ms(record.envelope)
    if said is not None:
        return said
    return row.deadline_ms if row is not None else entry.stamp_ms + UNSAID_DEADLINE_MS


def _said_deadline_ms(envelope: Envelope | None) -> int | None:
    text = envelope.headers.get("deadline", "") if envelope is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
