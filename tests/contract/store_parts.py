"""Batches for the stores under test, and what their tables hold."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, select

from schemas.messages import Message
from services.adapters.database.engine import Database
from services.adapters.database.store import SqlBookkeeperStore
from services.core.life.errands import LogBatch
from services.core.life.rows import Effect, LifeLimits, LogEntry

LIMITS = LifeLimits(max_tries=3)


def entries(*records: Message, at_ms: int = 100, partition: int = 2) -> list[LogEntry]:
    return [LogEntry(partition, at_ms + index, "req", record) for index, record in enumerate(records)]


async def apply(
    store: SqlBookkeeperStore, *records: Message, at_ms: int = 100, partition: int = 2
) -> list[Effect]:
    batch = LogBatch(entries(*records, at_ms=at_ms, partition=partition))
    return list(await store.apply(batch))


async def rows(database: Database, table: Table) -> dict[str, Any]:
    """All rows of a table by their first column."""
    async with database.reading() as connection:
        return {row[0]: row for row in await connection.execute(select(table))}
