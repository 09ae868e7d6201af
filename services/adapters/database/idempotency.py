"""Rows of `Idempotency-Key` and the outcomes that they replay."""

from __future__ import annotations

import orjson
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from schemas.messages import Failure
from schemas.payload import Payload
from services.adapters.database.engine import Database
from services.adapters.database.tables import idempotency, tasks
from services.ports import BlobStore, KeyRow, StoredOutcome, StoreError


class SqlIdempotencyStore:
    """`services.ports.IdempotencyStore` on a Database. `blobs` has the answers that are claims."""

    def __init__(self, database: Database, blobs: BlobStore | None = None) -> None:
        self._database, self._blobs = database, blobs

    async def claim_key(self, tenant: str, key: str, row: KeyRow) -> KeyRow:
        insert = postgresql.insert if self._database.is_postgres else sqlite.insert
        values = {
            "tenant": tenant,
            "idempotency_key": key,
            "task_id": row.task_id,
            "body_sha256": row.body_sha256,
            "deadline_ms": row.deadline_ms,
            "accepted": row.accepted,
            "created_ms": row.created_ms,
        }
        # An update that changes nothing makes RETURNING give the row that stands, in one atomic statement.
        statement = (
            insert(idempotency)
            .values(values)
            .on_conflict_do_update(
                index_elements=["tenant", "idempotency_key"], set_={"tenant": idempotency.c.tenant}
            )
            .returning(
                idempotency.c.task_id,
                idempotency.c.body_sha256,
                idempotency.c.deadline_ms,
                idempotency.c.accepted,
                idempotency.c.created_ms,
            )
        )
        async with self._database.writing() as connection:
            return KeyRow(*(await connection.execute(statement)).one())

    async def mark_accepted(self, tenant: str, key: str, task_id: str) -> None:
        async with self._database.writing() as connection:
            await connection.execute(
                update(idempotency).where(*_key_of(tenant, key, task_id)).values(accepted=True)
            )

    async def free_key(self, tenant: str, key: str, task_id: str) -> None:
        async with self._database.writing() as connection:
            await connection.execute(delete(idempotency).where(*_key_of(tenant, key, task_id)))

    async def outcome(self, task_id: str) -> StoredOutcome | None:
        columns = (tasks.c.state, tasks.c.pool, tasks.c.model, tasks.c.answer, tasks.c.failure)
        async with self._database.reading() as connection:
            row = (await connection.execute(select(*columns).where(tasks.c.task_id == task_id))).one_or_none()
        if row is None:
            return None
        failure = None if row.failure is None else Failure.model_validate_json(row.failure)
        answer = None if row.answer is None else await self._answer(row.answer)
        return StoredOutcome(row.state, row.pool, row.model, answer, failure)

    async def _answer(self, stored: bytes) -> bytes | None:
        """The answer's own JSON; None where its blob is gone, for then nothing can be replayed."""
        payload = Payload.model_validate(orjson.loads(stored))
        if payload.claim is None:
            return orjson.dumps(payload.inline)
        if self._blobs is None:
            return None
        try:
            return await self._blobs.get(payload.claim.key, payload.claim.sha256)
        except (KeyError, ValueError):
            return None
        except OSError as fault:
            raise StoreError(f"blob: {type(fault).__name__}") from fault

    async def ping(self) -> None:
        await self._database.ping()


def _key_of(tenant: str, key: str, task_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        idempotency.c.tenant == tenant,
        idempotency.c.idempotency_key == key,
        idempotency.c.task_id == task_id,
    )
