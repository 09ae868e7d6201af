"""What every store of the bookkeeper must hold, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import Connection

from schemas.failures import FailureKind
from schemas.topics import DAY_MS
from services.adapters.database import tables
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.core.life.errands import KeptRecord, LogBatch
from services.core.life.rows import SendCancel, SendClosed
from services.ports import KeyRow, RowsRefused, StoreError
from tests.contract.store_parts import LIMITS, apply, entries, rows
from tests.life_records import DEADLINE_MS, closed, failed, parked, started, succeeded


async def test_migrating_twice_and_at_once_gives_the_schema_of_the_tables(url: str) -> None:
    await asyncio.gather(migrate(url), migrate(url))
    await migrate(url)
    database = Database(url)
    try:
        async with database.reading() as connection:
            assert await connection.run_sync(_differences) == []
    finally:
        await database.close()


async def test_a_database_of_the_revision_before_is_brought_up(url: str) -> None:
    await migrate(url)
    database = Database(url)
    try:
        async with database.writing((0,)) as connection:
            await connection.exec_driver_sql("DROP INDEX ledger_open_worker")
            await connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
        async with database.reading() as connection:
            assert len(await connection.run_sync(_differences)) == 1
        await migrate(url)
        async with database.reading() as connection:
            assert await connection.run_sync(_differences) == []
    finally:
        await database.close()


def _differences(connection: Connection) -> list[Any]:
    return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))


async def test_a_task_that_begins_and_ends_in_a_batch(store: SqlBookkeeperStore, database: Database) -> None:
    assert await apply(store, started("t", "a1"), succeeded("t", "a1", keep_answer=True)) == []
    attempt = (await rows(database, tables.ledger))["a1"]
    assert (attempt.task_id, attempt.tenant, attempt.pool, attempt.model) == (
        "t",
        "default",
        "chat-fast",
        "small",
    )
    assert (attempt.input_tokens, attempt.output_tokens, attempt.cost_usd) == (10, 5, 0.01)
    assert (attempt.state, attempt.verdict, attempt.charged, attempt.estimated) == (
        "ended",
        "outcome",
        False,
        False,
    )
    assert (attempt.started_ms, attempt.ended_ms, attempt.deadline_ms) == (50, 90, DEADLINE_MS)
    task = (await rows(database, tables.tasks))["t"]
    assert (task.state, task.kind, task.request_id, task.attempt, task.arrived_ms) == (
        "succeeded", "chat", "req", "a1", 30,
    )  # fmt: skip


async def test_rows_do_not_depend_on_how_the_log_was_cut_into_batches(
    store: SqlBookkeeperStore, database: Database
) -> None:
    log = entries(
        started("t", "a1"),
        failed("t", "a1", "parked", due_ms=200),
        started("t", "a2", redelivered=True),
        parked("t", "a2"),
        started("t", "a3", redelivered=True),
        succeeded("t", "a3"),
        succeeded("t", "a2"),
        closed("t"),
    )
    for entry in log:
        await store.apply(LogBatch([entry]))
    one_by_one = await rows(database, tables.ledger), await rows(database, tables.tasks)
    assert await rows(database, tables.parked) == {}
    await store.apply(LogBatch(log))
    assert (await rows(database, tables.ledger), await rows(database, tables.tasks)) == one_by_one
    assert {name: row.verdict for name, row in one_by_one[0].items()} == {
        "a1": "failed", "a2": "waste", "a3": "outcome",
    }  # fmt: skip
    assert one_by_one[1]["t"].attempt == "a3"


async def test_bookkeepers_that_overlap_do_no_harm(store: SqlBookkeeperStore, database: Database) -> None:
    """The old owner of a partition is slow; the new one reads from the last commit and gets further."""
    log = [
        entry
        for number in range(20)
        for entry in entries(
            started(f"t{number}", f"a{number}"),
            failed(f"t{number}", f"a{number}", "parked", due_ms=1),
            started(f"t{number}", f"b{number}"),
            succeeded(f"t{number}", f"b{number}"),
        )
    ]
    other = SqlBookkeeperStore(database, LIMITS)
    await asyncio.gather(
        *(bookkeeper.apply(LogBatch(log[:end])) for end in (10, 25, 60, 80) for bookkeeper in (store, other))
    )
    ledger = await rows(database, tables.ledger)
    assert {row.verdict for name, row in ledger.items() if name.startswith("a")} == {"failed"}
    assert {row.verdict for name, row in ledger.items() if name.startswith("b")} == {"outcome"}
    assert len(ledger) == 40
    assert len(await rows(database, tables.tasks)) == 20
    assert await rows(database, tables.parked) == {}


async def test_a_lost_try_whose_end_comes_late_is_ended_and_an_ended_one_never_changes(
    store: SqlBookkeeperStore, database: Database
) -> None:
    await apply(store, started("t", "a1"))
    await apply(store, started("t", "a2", redelivered=True))
    assert (await rows(database, tables.ledger))["a1"].state == "lost"
    await apply(store, failed("t", "a1", kind=FailureKind.RESET))
    first = (await rows(database, tables.ledger))["a1"]
    assert (first.state, first.verdict, first.cost_usd, first.charged) == ("ended", "waste", 0.01, True)
    await apply(store, succeeded("t", "a1"), at_ms=900)
    assert (await rows(database, tables.ledger))["a1"] == first


async def test_poison_is_owed_again_when_the_log_is_read_again(store: SqlBookkeeperStore) -> None:
    starts = [started("t", f"a{number}", redelivered=True) for number in range(5)]
    for _ in range(2):
        owed = await apply(store, *starts)
        assert [type(effect) for effect in owed] == [SendClosed, SendCancel]


async def test_unknown_records_are_kept_once_and_leave_with_the_batch_that_applies_them(
    store: SqlBookkeeperStore,
) -> None:
    record = KeptRecord(
        "k1", 2, 300, "CopyStarted", "1", b"t", b"\x00\xff", (("type", b"CopyStarted"), ("x", b"\xff"))
    )
    await store.apply(LogBatch(keep=[record]))
    await store.apply(LogBatch(keep=[record]))
    assert await store.kept(after=None, limit=10) == [record]
    assert await store.kept(after=(300, "k0"), limit=10) == [record]
    assert await store.kept(after=(300, "k1"), limit=10) == []
    await store.apply(LogBatch(entries(succeeded("t", "a1")), unkeep=["k1"]))
    assert await store.kept(after=None, limit=10) == []


@pytest.mark.parametrize("bad", ["started_ms", "tokens"])
async def test_values_that_no_database_takes_are_refused_and_nothing_of_the_batch_is_kept(
    store: SqlBookkeeperStore, database: Database, bad: str
) -> None:
    good, odd = succeeded("t", "a1"), succeeded("u", "b1")
    if bad == "started_ms":
        odd = odd.model_copy(update={"run": odd.run.model_copy(update={"started_ms": 2**70})})
    else:
        odd = odd.model_copy(update={"usage": odd.usage.model_copy(update={"input_tokens": 2**70})})
    with pytest.raises(RowsRefused):
        await apply(store, good, odd)
    assert await rows(database, tables.ledger) == {}
    assert await rows(database, tables.tasks) == {}


async def test_a_nul_in_a_text_is_stored_or_refused_but_never_an_outage(store: SqlBookkeeperStore) -> None:
    odd = succeeded("t", "a1").model_copy(update={"tenant": "a\x00b"})
    with contextlib.suppress(RowsRefused):
        await apply(store, odd)


async def test_what_is_past_its_time_to_live_is_purged(
    store: SqlBookkeeperStore, keys: SqlIdempotencyStore
) -> None:
    await apply(store, succeeded("t", "a1", keep_answer=True))
    await keys.claim_key("acme", "k", KeyRow("t", "sha", 500, accepted=True, created_ms=100))
    await apply(store, failed("u", "b1", "parked", due_ms=1))
    await store.mark_swept(await store.take_due({2: 200}, limit=10))
    assert await store.purge(DAY_MS) == 0
    assert await store.purge(DAY_MS + 200) == 2
    outcome = await keys.outcome("t")
    assert outcome is not None
    assert outcome.answer is None
    assert await store.purge(DEADLINE_MS + DAY_MS) == 1


async def test_no_database_is_a_store_error(tmp_path: Path) -> None:
    folder = tmp_path / "chimera.db"
    folder.mkdir()
    for url in (f"sqlite+aiosqlite:///{folder}", "postgresql+asyncpg://u:p@127.0.0.1:1/none"):
        database = Database(url, timeout_s=1)
        try:
            with pytest.raises(StoreError):
                await database.ping()
            with pytest.raises(StoreError):
                await SqlBookkeeperStore(database, LIMITS).apply(LogBatch(entries(closed("t"))))
        finally:
            await database.close()
