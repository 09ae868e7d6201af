"""The bulk statements of the bookkeeper's transaction, in each database's own dialect.

PostgreSQL takes a column as an array: one statement, one plan, one round trip for thousands of rows. SQLite
takes rows one by one from a prepared statement, in its own thread. Placeholders are the drivers' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import BigInteger, Boolean, Float, Integer, LargeBinary, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from services.adapters.database import tables
from services.core.life.rows import LedgerRow, ParkedRow, TaskRow

_ARRAYS: dict[type[Any], str] = {
    BigInteger: "int8[]",
    Integer: "int4[]",
    Float: "float8[]",
    Boolean: "bool[]",
    LargeBinary: "bytea[]",
}

_TASKS_CONFLICT = "ON CONFLICT (task_id) DO NOTHING"  # the first terminal record stands


def _replace(table: Table, key: str, keep: Sequence[str] = ()) -> str:
    sets = [
        f"{name} = COALESCE(excluded.{name}, {table.name}.{name})"
        if name in keep
        else f"{name} = excluded.{name}"
        for name in table.columns.keys()  # noqa: SIM118 - a column collection iterates over columns
        if name != key
    ]
    return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(sets)}"


_LEDGER_CONFLICT = _replace(tables.ledger, "attempt") + " WHERE ledger.state <> 'ended'"
_PARKED_CONFLICT = _replace(tables.parked, "task_id", keep=("lane", "headers", "value"))
_KEPT_CONFLICT = "ON CONFLICT (kept_key) DO NOTHING"

# What a fold reads of rows that stand: of outcomes and parked rows not the payload.
TASK_COLUMNS = ("task_id", "request_id", "tenant", "kind", "pool", "model", "state", "reason")
LEDGER_COLUMNS = LedgerRow._fields
PARKED_COLUMNS = ParkedRow._fields[:10]


@dataclass(frozen=True, slots=True)
class BulkSql:
    """Statements of one dialect. `arrays`: rows are handed over as columns."""

    arrays: bool
    insert_tasks: str
    upsert_ledger: str
    upsert_parked: str
    insert_kept: str
    select_tasks: str
    select_ledger: str
    select_parked: str
    delete_parked: str
    delete_kept: str

    async def write(
        self, connection: AsyncConnection, statement: str, rows: Sequence[tuple[Any, ...]]
    ) -> None:
        if rows and self.arrays:
            await connection.exec_driver_sql(statement, tuple(map(list, zip(*rows, strict=True))))
        elif rows:
            await connection.exec_driver_sql(statement, list(rows))

    async def by_ids(self, connection: AsyncConnection, statement: str, ids: Sequence[str]) -> Sequence[Any]:
        """Rows of a SELECT by ids; empty for no ids."""
        return (await connection.exec_driver_sql(statement, self._ids(ids))).all() if ids else ()

    async def delete(self, connection: AsyncConnection, statement: str, ids: Sequence[str]) -> None:
        if ids:
            await connection.exec_driver_sql(statement, self._ids(ids))

    def _ids(self, ids: Sequence[str]) -> tuple[Any]:
        return (list(ids) if self.arrays else orjson.dumps(list(ids)).decode(),)


def _insert(table: Table, conflict: str, *, arrays: bool) -> str:
    names = table.columns.keys()
    if arrays:
        types = [_ARRAYS.get(type(column.type), "text[]") for column in table.columns]
        marks = ", ".join(f"${place}::{array}" for place, array in enumerate(types, start=1))
        source = f"SELECT * FROM unnest({marks})"  # noqa: S608 - our own names
    else:
        source = f"VALUES ({', '.join('?' * len(names))})"
    return f"INSERT INTO {table.name} ({', '.join(names)}) {source} {conflict}"


def _bulk_sql(*, arrays: bool) -> BulkSql:
    listed = "= ANY($1::text[])" if arrays else "IN (SELECT value FROM json_each(?))"

    def select(columns: Sequence[str], table: Table, more: str = "") -> str:
        return f"SELECT {', '.join(columns)} FROM {table.name} WHERE task_id {listed}{more}"  # noqa: S608 - names

    return BulkSql(
        arrays=arrays,
        insert_tasks=_insert(tables.tasks, _TASKS_CONFLICT, arrays=arrays),
        upsert_ledger=_insert(tables.ledger, _LEDGER_CONFLICT, arrays=arrays),
        upsert_parked=_insert(tables.parked, _PARKED_CONFLICT, arrays=arrays),
        insert_kept=_insert(tables.kept, _KEPT_CONFLICT, arrays=arrays),
        select_tasks=select(TASK_COLUMNS, tables.tasks),
        select_ledger=select(LEDGER_COLUMNS, tables.ledger, " ORDER BY task_id, ordinal"),
        select_parked=select(PARKED_COLUMNS, tables.parked),
        delete_parked=f"DELETE FROM parked WHERE task_id {listed}",  # noqa: S608 - our own names
        delete_kept=f"DELETE FROM kept WHERE kept_key {listed}",  # noqa: S608 - the same
    )


POSTGRES = _bulk_sql(arrays=True)
SQLITE = _bulk_sql(arrays=False)


def task_row(stored: Sequence[Any]) -> TaskRow:
    return TaskRow(*stored)


def ledger_row(stored: Sequence[Any]) -> LedgerRow:
    """SQLite has no booleans: what it gives back as 0 and 1 becomes them again."""
    row = LedgerRow(*stored)
    return row._replace(charged=bool(row.charged), estimated=bool(row.estimated))


def parked_row(stored: Sequence[Any]) -> ParkedRow:
    row = ParkedRow(*stored)
    return row._replace(final=bool(row.final), seen=tuple(orjson.loads(stored[9])))


def parked_values(row: ParkedRow) -> tuple[Any, ...]:
    return (*row[:9], orjson.dumps(row.seen).decode(), *row[10:])
