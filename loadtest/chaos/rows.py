"""What the bookkeeper's rows say, asked of the database by plain SQL."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import AsyncEngine

from loadtest.chaos.evidence import Evidence

_TABLES = ("tasks", "ledger", "parked")
_AT_ONCE = 5_000  # ids in a query


async def read_rows(engine: AsyncEngine, evidence: Evidence, task_ids: Collection[str]) -> None:
    """Replaces the rows of the evidence by those of the given tasks."""
    ids = sorted(task_ids)
    evidence.tasks, evidence.ledger, evidence.parked = [], [], []
    kept = {"tasks": evidence.tasks, "ledger": evidence.ledger, "parked": evidence.parked}
    async with engine.connect() as connection:
        for table in _TABLES:
            query = text(f"SELECT * FROM {table} WHERE task_id IN :ids")  # noqa: S608 - one of three literals
            query = query.bindparams(bindparam("ids", expanding=True))
            for begin in range(0, len(ids), _AT_ONCE):
                found = await connection.execute(query, {"ids": ids[begin : begin + _AT_ONCE]})
                kept[table].extend(dict(row) for row in found.mappings())
