"""What every store must hold of parked tasks and of tries that nobody heard of again."""

from __future__ import annotations

from services.adapters.database import tables
from services.adapters.database.engine import Database
from services.adapters.database.store import SqlBookkeeperStore
from tests.contract.store_parts import apply, rows
from tests.life_records import DEADLINE_MS, closed, failed, parked, started, succeeded


async def test_a_parked_task_is_swept_once_and_its_mark_outlives_a_re_read(
    store: SqlBookkeeperStore, database: Database
) -> None:
    park = failed("t", "a1", "parked", due_ms=200)
    await apply(store, park)
    assert set(await store.due_partitions({1: 900, 2: 199})) == set()
    assert set(await store.due_partitions({1: 900, 2: 200})) == {2}
    assert await store.take_due({2: 199}, limit=10) == []
    assert await store.take_due({1: 500}, limit=10) == [], "another partition"
    [taken] = await store.take_due({2: 200}, limit=10)
    assert (taken.lane, taken.value) == ("t.tasks.chat-fast.interactive", b'{"by":"a1"}')
    assert taken.headers["request_id"] == "r-t"
    assert await store.take_due({2: 200}, limit=10) == [taken], "left in `sweeping` by a crash: again"
    assert set(await store.due_partitions({1: 900, 2: 0})) == {2}
    await store.mark_swept([taken])
    assert set(await store.due_partitions({1: 900, 2: 900})) == set()
    await apply(store, park)
    assert await store.take_due({2: 10_000}, limit=10) == []
    assert (await rows(database, tables.parked))["t"].state == "swept"
    await apply(store, succeeded("t", "a2"))
    assert await rows(database, tables.parked) == {}
    await apply(store, park)
    assert await rows(database, tables.parked) == {}


async def test_a_mark_is_set_only_on_the_state_that_was_taken(
    store: SqlBookkeeperStore, database: Database
) -> None:
    await apply(store, failed("t", "a1", "parked", due_ms=200))
    taken = await store.take_due({2: 200}, limit=10)
    await apply(store, failed("t", "a2", "parked", due_ms=400))
    await store.mark_swept(taken)
    row = (await rows(database, tables.parked))["t"]
    assert (row.state, row.attempt, row.value) == ("parked", "a2", b'{"by":"a2"}')


async def test_a_renewal_keeps_the_envelope_and_moves_the_due_time(store: SqlBookkeeperStore) -> None:
    await apply(store, parked("t", "a1", due_ms=31_000), at_ms=1_000)
    await apply(store, parked("t", "a1", renewal=True, due_ms=41_000), at_ms=11_000)
    assert await store.take_due({2: 40_999}, limit=10) == []
    [taken] = await store.take_due({2: 41_000}, limit=10)
    assert taken.value == b'{"task":"t"}'


async def test_overdue_tasks_are_named_and_not_taken(store: SqlBookkeeperStore) -> None:
    await apply(store, failed("t", "a1", "parked", due_ms=200))
    times = {2: DEADLINE_MS}
    assert await store.take_due(times, limit=10) == []
    [task] = await store.overdue(times, limit=10)
    assert (task.task_id, task.partition, task.request_id) == ("t", 2, "r-t")
    assert await store.overdue({2: DEADLINE_MS - 1}, limit=10) == []
    await apply(store, closed("t", "deadline"))
    assert await store.overdue(times, limit=10) == []


async def test_open_tries_past_their_deadline_are_lost(store: SqlBookkeeperStore, database: Database) -> None:
    await apply(store, started("t", "a1"), started("u", "b1"), succeeded("u", "b1"))
    assert await store.lose_tries({2: DEADLINE_MS - 1, 1: DEADLINE_MS + 9}) == 0
    assert await store.lose_tries({2: DEADLINE_MS}) == 1
    states = {name: row.state for name, row in (await rows(database, tables.ledger)).items()}
    assert states == {"a1": "lost", "b1": "ended"}


async def test_open_tries_of_dead_workers_are_lost_in_the_partitions_that_are_asked_for(
    store: SqlBookkeeperStore, database: Database
) -> None:
    await apply(store, started("t", "a1", worker="w1"), started("u", "b1", worker="w2"), partition=2)
    await apply(store, started("v", "c1", worker="w1"), partition=1)
    await apply(store, started("x", "d1", worker="w1"), succeeded("x", "d1"), partition=2)
    assert set(await store.open_workers([2])) == {"w1", "w2"}
    assert set(await store.open_workers([1, 3])) == {"w1"}
    assert list(await store.open_workers([])) == []
    assert await store.lose_tries_of(["w1", "w9"], [2, 3], 777) == 1
    assert await store.lose_tries_of(["w1"], [2], 888) == 0, "lost once"
    assert await store.lose_tries_of([], [2], 888) == await store.lose_tries_of(["w1"], [], 888) == 0
    ledger = await rows(database, tables.ledger)
    assert {name: row.state for name, row in ledger.items()} == {
        "a1": "lost", "b1": "open", "c1": "open", "d1": "ended",
    }  # fmt: skip
    assert (ledger["a1"].verdict, ledger["a1"].ended_ms) == ("lost", 777)
    await apply(store, succeeded("t", "a1"), partition=2)
    back = (await rows(database, tables.ledger))["a1"]
    assert (back.state, back.verdict, back.output_tokens) == ("ended", "outcome", 5), "heard of after all"


async def test_the_newest_stamp_of_a_partition(store: SqlBookkeeperStore) -> None:
    await apply(store, parked("t", "a1"), at_ms=700, partition=1)
    await apply(store, started("u", "b1"), at_ms=900, partition=2)
    assert await store.newest_stamps([1, 2, 3]) == {1: 700, 2: 50}
    assert await store.newest_stamps([]) == {}
