"""What the rows say of one task, for whoever asks about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import or_, select

from services.adapters.database.engine import Database
from services.adapters.database.tables import ledger, parked, tasks


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
        query = select(tasks).where(or_(tasks.c.task_id == name, tasks.c.request_id == name)).limit(100)
        ended = [dict(row) for row in (await connection.execute(query)).mappings()]
        ids = [row["task_id"] for row in ended] or [name]
        tried = select(ledger).where(ledger.c.task_id.in_(ids)).order_by(ledger.c.ordinal)
        attempts = [dict(row) for row in (await connection.execute(tried)).mappings()]
        waits = select(parked).where(parked.c.task_id.in_(ids))
        rows = {row["task_id"]: dict(row) for row in (await connection.execute(waits)).mappings()}
    outcomes = {row["task_id"]: row for row in ended}
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
