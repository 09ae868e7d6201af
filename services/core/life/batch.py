"""Many records over the rows of many tasks: what one transaction reads, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.core.life.fold import fold
from services.core.life.rows import (
    NO_ROWS,
    Effect,
    LedgerRow,
    LifeLimits,
    LogEntry,
    ParkedRow,
    TaskRow,
    TaskRows,
    owed_key,
)


@dataclass(slots=True)
class Changes:
    """Rows to write: outcomes to insert, attempts and parked rows to upsert, parked rows to delete."""

    outcomes: list[TaskRow] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    parked: list[ParkedRow] = field(default_factory=list)
    unparked: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Folded:
    """`rows`: of every task that a record of the batch is about. `effects`: without repeats, in order."""

    rows: Mapping[str, TaskRows]
    changes: Changes
    effects: tuple[Effect, ...]


def fold_batch(entries: Sequence[LogEntry], stored: Mapping[str, TaskRows], limits: LifeLimits) -> Folded:
    """Folds entries in their order; `stored` has the rows of the tasks that have any."""
    rows: dict[str, TaskRows] = {}
    owed: dict[tuple[str, ...], Effect] = {}
    for entry in entries:
        task_id = entry.message.task_id
        before = rows.get(task_id)
        if before is None:
            before = stored.get(task_id, NO_ROWS)
        rows[task_id], effects = fold(before, entry, limits)
        for effect in effects:
            owed.setdefault(owed_key(effect), effect)
    return Folded(rows, _changes(rows, stored), tuple(owed.values()))


def _changes(rows: Mapping[str, TaskRows], stored: Mapping[str, TaskRows]) -> Changes:
    changes = Changes()
    for task_id, after in rows.items():
        before = stored.get(task_id)
        if before is None:
            changes.ledger.extend(after.ledger)
            if after.outcome is not None:
                changes.outcomes.append(after.outcome)
            if after.parked is not None:
                changes.parked.append(after.parked)
        elif before is not after:
            _compare(task_id, before, after, changes)
    return changes


def _compare(task_id: str, before: TaskRows, after: TaskRows, changes: Changes) -> None:
    if after.outcome is not before.outcome and after.outcome is not None:
        changes.outcomes.append(after.outcome)
    if after.ledger is not before.ledger:
        known = {id(row) for row in before.ledger}
        changes.ledger.extend(row for row in after.ledger if id(row) not in known)
    if after.parked is None and before.parked is not None:
        changes.unparked.append(task_id)
    elif after.parked is not None and after.parked is not before.parked:
        changes.parked.append(after.parked)
