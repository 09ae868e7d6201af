"""What the rows say of one task, for whoever asks about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncConnection

from services.adapters.database.engine import Database
from services.adapters.database.tables import ledger, parked, tasks

_MOST = 100  # tasks of one request
_AT_ONCE = 500  # ids in one statement


@dataclass(frozen=True, slots=True)
class RowsOfTask:
    """`outcome` None: not ended, or not booked yet. `attempts` in order. `parked` may be a mark only."""

    task_id: str
    outcome: Mapping[str, Any] | None
    attempts: tuple[Mapping[str, Any], ...]
    parked: Mapping[str, Any] | None


async def rows_of_task(database: Database, name: str) -> list[RowsOfTask]:
    """Of a task_id, or of all ended tasks of a request_id. Raises StoreError."""
    async with database.reading() as connection:
        found = await _rows(connection, tasks.c.task_id == name, [name])
        # No index by request, which would cost every task a write: only for names that are no task's.
        return found or await _rows(connection, tasks.c.request_id == name, [])


async def ended_tasks(database: Database, task_ids: Sequence[str]) -> dict[str, str]:
    """Those of them that have ended, and how. Raises StoreError."""
    found: dict[str, str] = {}
    async with database.reading() as connection:
        for at in range(0, len(task_ids), _AT_ONCE):
            some = task_ids[at : at + _AT_ONCE]
            query = select(tasks.c.task_id, tasks.c.state).where(tasks.c.task_id.in_(some))
            found |= {row.task_id: row.state for row in await connection.execute(query)}
    return found


async def _rows(
    connection: AsyncConnection, which: ColumnElement[bool], ids: Sequence[str]
) -> list[RowsOfTask]:
    query = select(tasks).where(which).limit(_MOST)
    outcomes = {row["task_id"]: dict(row) for row in (await connection.execute(query)).mappings()}
    ids = list(outcomes) or ids
    tried = select(ledger).where(ledger.c.task_id.in_(ids)).order_by(ledger.c.ordinal)
    attempts = [dict(row) for row in (await connection.execute(tried)).mappings()]
    waits = select(parked).where(parked.c.task_id.in_(ids))
    rows = {row["task_id"]: dict(row) for row in (await connection.execute(waits)).mappings()}
    found = [
        RowsOfTask(
            task_id,
            outcomes.get(task_id),
            tuple(row for row in attempts if row["task_id"] == task_id),
            rows.get(task_id),
        )
        for task_id in ids
    ]
    return [one for one in found if one.outcome or one.attempts or one.parked]
