"""The bookkeeper's rows: one transaction for a batch of records, few statements whatever its size."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from services.adapters.database import bulk, sweep_rows
from services.adapters.database.engine import Database
from services.core.life.batch import Changes, fold_batch
from services.core.life.errands import KeptRecord, LogBatch, OverdueTask, TakenTask
from services.core.life.rows import Effect, LedgerRow, LifeLimits, ParkedRow, TaskRow, TaskRows


class SqlBookkeeperStore:
    """`services.ports.BookkeeperStore` on a Database. `limits`: cap of tries and grace periods."""

    def __init__(self, database: Database, limits: LifeLimits) -> None:
        self._database, self._limits = database, limits
        self._sql = bulk.POSTGRES if database.is_postgres else bulk.SQLITE

    async def apply(self, batch: LogBatch) -> Sequence[Effect]:
        partitions = {entry.partition for entry in batch.entries}
        async with self._database.writing(partitions) as connection:
            ids = list({entry.message.task_id for entry in batch.entries})
            folded = fold_batch(batch.entries, await self._stored(connection, ids), self._limits)
            await self._save(connection, folded.changes)
            kept = [_kept_values(record) for record in batch.keep]
            await self._sql.write(connection, self._sql.insert_kept, kept)
            await self._sql.delete(connection, self._sql.delete_kept, batch.unkeep)
        return folded.effects

    async def _stored(self, connection: AsyncConnection, ids: Sequence[str]) -> Mapping[str, TaskRows]:
        """The rows of the tasks that have any: usually of none, for most tasks begin and end in a batch."""
        sql = self._sql
        outcomes: dict[str, TaskRow] = {
            row[0]: bulk.task_row(row) for row in await sql.by_ids(connection, sql.select_tasks, ids)
        }
        parked: dict[str, ParkedRow] = {
            row[0]: bulk.parked_row(row) for row in await sql.by_ids(connection, sql.select_parked, ids)
        }
        ledger: dict[str, list[LedgerRow]] = {}
        for row in await sql.by_ids(connection, sql.select_ledger, ids):
            ledger.setdefault(row[1], []).append(bulk.ledger_row(row))
        return {
            task_id: TaskRows(outcomes.get(task_id), tuple(ledger.get(task_id, ())), parked.get(task_id))
            for task_id in outcomes.keys() | parked.keys() | ledger.keys()
        }

    async def _save(self, connection: AsyncConnection, changes: Changes) -> None:
        sql = self._sql
        await sql.write(connection, sql.upsert_ledger, changes.ledger)
        await sql.write(connection, sql.insert_tasks, changes.outcomes)
        await sql.write(connection, sql.upsert_parked, [bulk.parked_values(row) for row in changes.parked])
        await sql.delete(connection, sql.delete_parked, changes.unparked)

    async def due_partitions(self, times: Mapping[int, int]) -> Collection[int]:
        if not times:
            return ()
        async with self._database.reading() as connection:
            return await sweep_rows.due_partitions(connection, times)

    async def take_due(self, times: Mapping[int, int], *, limit: int) -> Sequence[TakenTask]:
        if not times:
            return ()
        async with self._database.writing(times.keys()) as connection:
            return await sweep_rows.take_due(connection, times, limit)

    async def mark_swept(self, taken: Sequence[TakenTask]) -> None:
        if taken:
            async with self._database.writing({task.partition for task in taken}) as connection:
                await sweep_rows.mark_swept(connection, taken)

    async def overdue(self, times: Mapping[int, int], *, limit: int) -> Sequence[OverdueTask]:
        if not times:
            return ()
        async with self._database.reading() as connection:
            return await sweep_rows.overdue(connection, times, limit)

    async def lose_tries(self, times: Mapping[int, int]) -> int:
        if not times:
            return 0
        async with self._database.writing(times.keys()) as connection:
            return await sweep_rows.lose_tries(connection, times)

    async def open_workers(self, partitions: Collection[int]) -> Collection[str]:
        if not partitions:
            return ()
        async with self._database.reading() as connection:
            return await sweep_rows.open_workers(connection, partitions)

    async def lose_tries_of(self, workers: Collection[str], partitions: Collection[int], at_ms: int) -> int:
        if not workers or not partitions:
            return 0
        async with self._database.writing(partitions) as connection:
            return await sweep_rows.lose_tries_of(connection, workers, partitions, at_ms)

    async def newest_stamps(self, partitions: Collection[int]) -> Mapping[int, int]:
        if not partitions:
            return {}
        async with self._database.reading() as connection:
            return await sweep_rows.newest_stamps(connection, partitions)

    async def kept(self, *, after: tuple[int, str] | None, limit: int) -> Sequence[KeptRecord]:
        async with self._database.reading() as connection:
            return [_kept_record(row) for row in await sweep_rows.kept(connection, after, limit)]

    async def purge(self, now_ms: int) -> int:
        async with self._database.writing() as connection:
            return await sweep_rows.purge(connection, now_ms)

    async def ping(self) -> None:
        await self._database.ping()


def _kept_values(record: KeptRecord) -> tuple[object, ...]:
    headers = [[name, base64.b64encode(value).decode()] for name, value in record.headers]
    return (
        record.kept_key,
        record.partition,
        record.stamp_ms,
        record.type,
        record.major,
        record.task_key,
        record.value,
        orjson.dumps(headers).decode(),
    )


def _kept_record(row: Sequence[Any]) -> KeptRecord:
    headers = tuple((name, base64.b64decode(value)) for name, value in orjson.loads(row[7]))
    return KeptRecord(row[0], row[1], row[2], row[3], row[4], row[5], row[6], headers)
