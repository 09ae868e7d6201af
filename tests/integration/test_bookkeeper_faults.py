"""The bookkeeper while its database is away, and records that it cannot make rows of (CASES Q3, R9)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiosqlite

from infra.postgres import PostgresServer
from schemas.codec import encode
from schemas.headers import to_text
from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES
from services.adapters.database import tables
from tests.integration.bookkeeper_fleet import NAMES, Fleet, fleet_on, until, until_row
from tests.life_records import started, succeeded


async def test_r9_a_locked_database_holds_the_offsets_back_and_then_recovers(
    fleet: Fleet, sqlite_path: Path
) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: not bookkeeper.database_up)
        assert fleet.lag() == 1
        await blocker.execute("ROLLBACK")
    await until(lambda: fleet.lag() == 0)
    assert bookkeeper.database_up
    assert list(await fleet.rows(tables.tasks)) == ["t"]


async def test_r9_a_frozen_postgres_holds_the_offsets_back_and_then_recovers(tmp_path: Path) -> None:
    async with PostgresServer() as server, fleet_on(server.url, tmp_path, timeout_s=1.0) as fleet:
        bookkeeper = fleet.start()
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: fleet.lag() == 0)
        await server.freeze()
        try:
            await fleet.say(succeeded("u", "b1"))
            await until(lambda: not bookkeeper.database_up, within_s=30)
            assert fleet.lag() == 1
        finally:
            server.thaw()
        await until(lambda: fleet.lag() == 0, within_s=30)
        assert set(await fleet.rows(tables.tasks)) == {"t", "u"}


async def test_r9_a_database_that_is_gone_shows_without_any_record(fleet: Fleet, sqlite_path: Path) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    await fleet.say(started("t", "a1"))
    await until(lambda: fleet.lag() == 0)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await until(lambda: not bookkeeper.database_up)
        await blocker.execute("ROLLBACK")
    await until(lambda: bookkeeper.database_up)


async def test_stopping_while_the_database_is_away_leaves_the_offsets_and_the_rest_to_the_next(
    fleet: Fleet, sqlite_path: Path
) -> None:
    bookkeeper = fleet.start()
    await until(lambda: bookkeeper.joined)
    async with aiosqlite.connect(sqlite_path, isolation_level=None) as blocker:
        await blocker.execute("BEGIN EXCLUSIVE")
        await fleet.say(succeeded("t", "a1"))
        await until(lambda: not bookkeeper.database_up)
        await asyncio.wait_for(fleet.stop(), 10)
        await blocker.execute("ROLLBACK")
    assert fleet.lag() == 1
    fleet.start()
    await until(lambda: fleet.lag() == 0)


async def test_bad_bytes_go_to_the_dead_with_their_origin_and_the_partition_moves_on(fleet: Fleet) -> None:
    await fleet.put(b"t", b"{not json", [("type", b"TaskSucceeded"), ("v", b"1")])
    await fleet.put(b"t", b"\xff", [])
    large = b"x" * (MAX_RECORD_BYTES - 200)  # with what a dead letter adds, no record can carry it
    await fleet.put(b"t", large, [])
    await fleet.say(succeeded("t", "a1"))
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    dead = fleet.bus.records(NAMES.dead)
    assert [record.value for record in dead[:2]] == [b"{not json", b"\xff"]
    assert [to_text(record.headers)["dead_origin_offset"] for record in dead] == ["0", "1", "2"]
    claim = Claim.model_validate_json(to_text(dead[2].headers)["dead_claim"])
    assert await fleet.blobs.get(claim.key, claim.sha256) == large
    assert "TaskSucceeded" in to_text(dead[0].headers)["dead_reason"]
    assert list(await fleet.rows(tables.tasks)) == ["t"]


async def test_values_that_the_database_refuses_go_to_the_dead_and_hold_up_nobody(fleet: Fleet) -> None:
    for number in range(7):
        message = succeeded(f"t{number}", f"a{number}")
        if number == 4:
            run = message.run.model_copy(update={"started_ms": 2**63})
            message = message.model_copy(update={"run": run})
        await fleet.say(message)
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert set(await fleet.rows(tables.tasks)) == {"t0", "t1", "t2", "t3", "t5", "t6"}
    [dead] = fleet.bus.records(NAMES.dead)
    assert dead.key == b"t4"


async def test_q3_a_record_that_cannot_be_folded_goes_to_the_dead_and_does_not_end_the_bookkeeper(
    fleet: Fleet,
) -> None:
    deep = b"[" * 400 + b"]" * 400  # is read, and is more than can be written
    nested = encode(succeeded("deep", "a1", keep_answer=True)).replace(b'{"by":"a1"}', deep)
    await fleet.say(succeeded("before", "a0"))
    await fleet.put(b"deep", nested, [("type", b"TaskSucceeded"), ("v", b"1")])
    await fleet.say(succeeded("after", "a2"))
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert set(await fleet.rows(tables.tasks)) == {"before", "after"}
    [dead] = fleet.bus.records(NAMES.dead)
    assert dead.value == nested
    assert "bookkeeper failed" in to_text(dead.headers)["dead_reason"]


async def test_records_of_the_future_are_kept_and_applied_by_the_version_that_knows_them(
    fleet: Fleet,
) -> None:
    future = [("type", b"TaskSucceeded"), ("v", b"2"), ("request_id", b"r-t")]
    await fleet.put(b"t", b'{"shape":"of tomorrow"}', future)
    await fleet.put(b"t", b'{"shape":"of tomorrow"}', future)
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    [kept] = (await fleet.rows(tables.kept)).values()
    assert (kept.type, kept.major, kept.value) == ("TaskSucceeded", "2", b'{"shape":"of tomorrow"}')
    await fleet.stop()

    async with fleet.database.writing() as connection:  # the upgrade: what it kept is readable now
        known = encode(succeeded("t", "a1"))
        headers = kept.headers.replace("Mg==", "MQ==")
        await connection.execute(tables.kept.update().values(value=known, headers=headers))
    fleet.start()
    await until_row(fleet, tables.tasks, "t", "succeeded")
    async with asyncio.timeout(10):
        while await fleet.rows(tables.kept):
            await asyncio.sleep(0.01)
    assert (await fleet.rows(tables.tasks))["t"].request_id == "r-t"
