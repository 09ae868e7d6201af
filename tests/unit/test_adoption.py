"""Who adopts the lanes of a pool without workers, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_messages import PoolOrder, WorkerBeat, WorkerState
from services.core.adoption import adopter_of, to_adopt
from services.core.fleet_table import FleetTable

AFTER_S = 30.0


def beat(table: FleetTable, worker: str, pool: str, now_s: float, state: WorkerState = "ready") -> None:
    said = WorkerBeat(sent_ms=0, worker=worker, pool=pool, state=state, slots=1, in_flight=0)
    table.apply(said.key, said, now_s)


def adopted(table: FleetTable, worker: str, now_s: float, read_s: float = 1e3) -> list[str]:
    return to_adopt(worker, ("a", "b"), table, now_s, read_s, AFTER_S)


@given(st.text(max_size=5), st.sets(st.text(min_size=1, max_size=5), min_size=2))
def test_all_agree_on_the_adopter_and_only_its_own_move_when_it_leaves(pool: str, workers: set[str]) -> None:
    first = adopter_of(pool, workers)
    assert first in workers
    assert adopter_of(pool, sorted(workers)) == first
    for gone in workers - {first}:
        assert adopter_of(pool, workers - {gone}) == first
    assert adopter_of(pool, ()) is None


def test_a_pool_is_adopted_by_one_after_its_silence_and_let_go_at_its_first_beat() -> None:
    table = FleetTable()
    beat(table, "a1", "a", 0.0)
    for now_s in (0.0, 29.0, 30.0):
        for name in ("b1", "b2", "b3"):
            beat(table, name, "b", now_s)
    assert [adopted(table, name, 29.9) for name in ("b1", "b2", "b3")] == [[], [], []]
    took = [name for name in ("b1", "b2", "b3") if adopted(table, name, 30.0) == ["a"]]
    assert len(took) == 1
    assert adopted(table, "a1", 30.0) == []  # the dead adopt nothing
    beat(table, "a2", "a", 30.1, "loading")
    assert adopted(table, took[0], 30.1) == []


def test_draining_workers_neither_keep_a_pool_nor_adopt_one() -> None:
    table = FleetTable()
    beat(table, "a1", "a", 0.0)
    beat(table, "a1", "a", 30.0, "draining")
    beat(table, "b1", "b", 30.0, "draining")
    beat(table, "b2", "b", 30.0)
    assert adopted(table, "b2", 30.0) == ["a"]
    assert adopted(table, "b1", 30.0) == []


def test_what_waits_in_a_paused_pool_is_left_to_wait() -> None:
    table = FleetTable()
    beat(table, "b1", "b", 50.0)
    paused = PoolOrder(sent_ms=0, pool="a", mode="paused")
    table.apply(paused.key, paused, 50.0)
    assert adopted(table, "b1", 50.0) == []


def test_whom_nobody_ever_heard_of_is_silent_since_the_table_was_read() -> None:
    table = FleetTable()
    beat(table, "b1", "b", 50.0)
    assert adopted(table, "b1", 50.0, read_s=29.0) == []
    assert adopted(table, "b1", 50.0, read_s=30.0) == ["a"]


def test_without_a_worker_that_takes_work_nobody_adopts() -> None:
    table = FleetTable()
    beat(table, "b1", "b", 0.0, "loading")
    assert adopted(table, "b1", 0.5) == []
