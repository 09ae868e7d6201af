"""What every store must hold of Idempotency-Keys and of the outcomes that are replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from schemas.failures import FailureKind
from schemas.payload import Claim, Payload
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.adapters.database.store import SqlBookkeeperStore
from services.ports import KeyRow
from tests.contract.store_parts import apply
from tests.life_records import closed, gave_up, succeeded


async def test_a_key_is_claimed_by_exactly_one_of_many(keys: SqlIdempotencyStore) -> None:
    rows_ = [KeyRow(f"t{number}", "sha", 500, accepted=False, created_ms=number) for number in range(8)]
    standing = await asyncio.gather(*(keys.claim_key("acme", "k", row) for row in rows_))
    assert len(set(standing)) == 1
    assert standing[0] in rows_
    assert await keys.claim_key("other", "k", rows_[0]) == rows_[0], "keys belong to tenants"


async def test_a_key_is_marked_and_freed_only_by_its_task(keys: SqlIdempotencyStore) -> None:
    row = KeyRow("t1", "sha", 500, accepted=False, created_ms=1)
    await keys.claim_key("acme", "k", row)
    await keys.mark_accepted("acme", "k", "t2")
    await keys.free_key("acme", "k", "t2")
    assert not (await keys.claim_key("acme", "k", row)).accepted
    await keys.mark_accepted("acme", "k", "t1")
    second = KeyRow("t9", "sha", 500, accepted=False, created_ms=2)
    assert await keys.claim_key("acme", "k", second) == KeyRow("t1", "sha", 500, accepted=True, created_ms=1)
    await keys.free_key("acme", "k", "t1")
    assert await keys.claim_key("acme", "k", second) == second


async def test_the_outcome_is_what_the_bookkeeper_wrote(
    store: SqlBookkeeperStore, keys: SqlIdempotencyStore
) -> None:
    assert await keys.outcome("t") is None
    await apply(store, succeeded("t", "a1", keep_answer=True), gave_up("u", "b1"), closed("v"))
    told = await keys.outcome("t")
    assert told is not None
    assert (told.state, told.pool, told.model, told.failure) == ("succeeded", "chat-fast", "small", None)
    assert told.answer is not None
    assert orjson.loads(told.answer) == {"by": "a1"}
    failed_ = await keys.outcome("u")
    assert failed_ is not None
    assert failed_.failure is not None
    assert (failed_.state, failed_.failure.kind) == ("failed", FailureKind.INTERRUPTED)
    closed_ = await keys.outcome("v")
    assert closed_ is not None
    assert closed_.failure is not None
    assert (closed_.state, closed_.failure.kind) == ("closed", FailureKind.CANCELLED)


async def test_a_claimed_answer_is_replayed_from_its_blob_and_not_at_all_without_it(
    store: SqlBookkeeperStore, database: Database, tmp_path: Path
) -> None:
    blobs = DirectoryBlobStore(tmp_path / "blobs")
    key, sha256 = await blobs.put(b'{"big":1}')
    claim = Payload(claim=Claim(key=key, sha256=sha256, size=9))
    end = succeeded("t", "a1", keep_answer=True)
    await apply(store, end.model_copy(update={"answer": claim}))
    for keys, expected in (
        (SqlIdempotencyStore(database, blobs), b'{"big":1}'),
        (SqlIdempotencyStore(database, DirectoryBlobStore(tmp_path / "empty")), None),
    ):
        outcome = await keys.outcome("t")
        assert outcome is not None
        assert outcome.answer == expected
