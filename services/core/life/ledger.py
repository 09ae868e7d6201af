"""What a record does to the ledger: one row per attempt, open -> ended, open -> lost, lost -> ended."""

from __future__ import annotations

from schemas.failures import FAILURE_FACTS, FailureKind
from schemas.messages import AttemptFailed, AttemptStarted, TaskFailed, TaskSucceeded, Try, Usage
from services.core.life.rows import LedgerRow, LogEntry, TaskRow, TaskRows
from services.core.life.table import LEDGER_MOVES, TENANTS_OWN_ENDS, LedgerState, LedgerStep, Verdict

_NO_USAGE = Usage()
_OPEN, _ENDED = LedgerState.OPEN.value, LedgerState.ENDED.value
_OUTCOME, _WASTE = Verdict.OUTCOME.value, Verdict.WASTE.value
_CAN_END = {state for state, step in LEDGER_MOVES if step is LedgerStep.END}


def opened(rows: TaskRows, entry: LogEntry, record: AttemptStarted) -> tuple[LedgerRow, ...]:
    """The ledger after a start: its own row, and when redelivered, earlier open tries lost."""
    ledger, run = rows.ledger, record.run
    row = _find(ledger, run.attempt)
    if row is None:
        row = _row(run, entry, record.tenant, len(ledger), _NO_USAGE, _OPEN, None, False, None)
        row = row._replace(deadline_ms=record.deadline_ms)
        ledger = (*ledger, row)
    if record.redelivered:
        ordinal = row.ordinal
        if any(other.state == _OPEN and other.ordinal < ordinal for other in ledger):
            ledger = tuple(
                lost(other, entry.stamp_ms) if other.ordinal < ordinal else other for other in ledger
            )
    return ledger


def ended(
    rows: TaskRows, entry: LogEntry, record: AttemptFailed | TaskSucceeded | TaskFailed
) -> tuple[LedgerRow, ...]:
    """The ledger after a try's end; the same object when it had ended before."""
    ledger, run = rows.ledger, record.run
    if run is None:
        return ledger
    row = _find(ledger, run.attempt)
    if row is None:
        return (*ledger, _ended_row(rows.outcome, entry, record, run, len(ledger), 0))
    if row.state not in _CAN_END:
        return ledger
    new = _ended_row(rows.outcome, entry, record, run, row.ordinal, row.deadline_ms)
    return tuple(new if other is row else other for other in ledger)


def lost(row: LedgerRow, at_ms: int) -> LedgerRow:
    """The row of a try that nobody will hear of, unless its end is read after all."""
    state = LEDGER_MOVES.get((LedgerState(row.state), LedgerStep.LOSE))
    if state is None:
        return row
    return row._replace(state=state.value, verdict=Verdict.LOST.value, ended_ms=at_ms)


def strikes(ledger: tuple[LedgerRow, ...]) -> int:
    """Attempts that ended lost or charged: what poison is counted by."""
    return sum(1 for row in ledger if row.charged or row.state == LedgerState.LOST)


def verdict(record: AttemptFailed | TaskSucceeded | TaskFailed, outcome: TaskRow | None) -> str:
    """What the attempt of a record was good for, given the outcome that stood before the record."""
    if outcome is None and not isinstance(record, AttemptFailed):
        return _OUTCOME
    if isinstance(record, TaskSucceeded):
        return _WASTE
    if not FAILURE_FACTS[FailureKind(record.failure.kind)].billed:
        return _WASTE
    if outcome is not None:
        return Verdict.FAILED.value if outcome.reason in TENANTS_OWN_ENDS else _WASTE
    counts = isinstance(record, AttemptFailed) and record.charged and record.next != "closed"
    return Verdict.FAILED.value if counts else _WASTE


def _find(ledger: tuple[LedgerRow, ...], attempt: str) -> LedgerRow | None:
    for row in ledger:
        if row.attempt == attempt:
            return row
    return None


def _ended_row(
    outcome: TaskRow | None,
    entry: LogEntry,
    record: AttemptFailed | TaskSucceeded | TaskFailed,
    run: Try,
    ordinal: int,
    deadline_ms: int,
) -> LedgerRow:
    charged = isinstance(record, AttemptFailed) and record.charged
    usage = record.usage or _NO_USAGE
    judged = verdict(record, outcome)
    row = _row(run, entry, record.tenant, ordinal, usage, _ENDED, judged, charged, record.ended_ms)
    return row if not deadline_ms else row._replace(deadline_ms=deadline_ms)


def _row(
    run: Try,
    entry: LogEntry,
    tenant: str,
    ordinal: int,
    usage: Usage,
    state: str,
    judged: str | None,
    charged: bool,
    ended_ms: int | None,
) -> LedgerRow:
    return LedgerRow(
        run.attempt,
        entry.message.task_id,
        entry.partition,
        ordinal,
        tenant,
        run.worker,
        run.pool,
        run.model,
        run.model_version,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cost_usd,
        usage.estimated,
        state,
        judged,
        charged,
        run.started_ms,
        ended_ms,
        0,
    )
