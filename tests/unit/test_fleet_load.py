"""How loaded workers and pools are, by heartbeats that grow old and what was sent since."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_messages import BackendState, PoolOrder, WorkerBeat
from services.core.fleet import Pool
from services.core.fleet_load import GONE, HELD, READY, SOON, Station, pool_state, stations, work_s
from services.core.fleet_table import FleetTable

POOLS = {"a": Pool(name="a", model="m", prior_seconds=2.0), "b": Pool(name="b", model="n")}


def beat(worker: str = "w", pool: str = "a", **fields: Any) -> WorkerBeat:
    said = {"state": "ready", "slots": 4, "in_flight": 0, **fields}
    return WorkerBeat(sent_ms=0, worker=worker, pool=pool, **said)


def table_of(*beats: WorkerBeat, heard_s: float = 0.0) -> FleetTable:
    table = FleetTable()
    for one in beats:
        table.apply(one.key, one, heard_s)
    return table


def only(found: tuple[Station, ...]) -> Station:
    (one,) = found
    return one


@given(st.integers(0, 50), st.integers(0, 8), st.floats(0, 500), st.floats(0, 3), st.floats(0.01, 10))
def test_work_shrinks_with_age_and_never_below_none(
    in_flight: int, slots: int, queued_s: float, age_s: float, usual_s: float
) -> None:
    said = beat(in_flight=in_flight, slots=slots, queue_seconds=queued_s)
    now, later = work_s(said, age_s, usual_s), work_s(said, age_s + 0.5, usual_s)
    assert 0 <= later <= now <= queued_s + in_flight * usual_s / 2
    if later > 0:
        assert now - later == pytest.approx(0.5 * min(in_flight, slots))


def test_what_was_sent_since_the_beat_takes_its_slots_and_counts_as_work() -> None:
    table = table_of(beat(in_flight=1, queued=0, service_seconds=1.0))
    idle = only(stations(table, POOLS, 0.0))
    assert (idle.free, idle.wait_s) == (3, 0.0)
    sent = only(stations(table, POOLS, 0.0, lambda _worker, _since_s: 5))
    assert sent.free == 0
    assert sent.wait_s == (0.5 + 5 * 1.0) / 4


def test_a_worker_that_starts_nothing_is_no_place_to_wait_at() -> None:
    out = (BackendState(base_url="u", breaker="open"), BackendState(base_url="v", health="unavailable"))
    for said, standing in (
        (beat(state="loading"), "loading"),
        (beat(state="draining"), "draining"),
        (beat(backends=out), "stuck"),
        (beat(backends=(*out, BackendState(base_url="w"))), "ready"),
    ):
        found = only(stations(table_of(said), POOLS, 0.0))
        assert found.standing == standing
        assert (found.wait_s == float("inf")) == (standing != "ready")


def test_the_dead_and_those_of_unknown_pools_are_no_stations() -> None:
    assert stations(table_of(beat()), POOLS, 3.1) == ()
    assert stations(table_of(beat(pool="elsewhere")), POOLS, 0.0) == ()


def test_a_pool_is_as_much_use_as_its_best_worker_and_its_order_allow() -> None:
    def rank(*beats: WorkerBeat, mode: str = "running") -> int:
        table = table_of(*beats)
        order = PoolOrder(sent_ms=0, pool="a", mode=mode)
        table.apply(order.key, order, 0.0)
        return pool_state(stations(table, POOLS, 0.0), table.mode("a")).rank

    assert rank(beat("w1"), beat("w2", state="loading")) == READY
    assert rank(beat("w1", state="loading")) == SOON
    assert rank(beat("w1"), mode="paused") == HELD
    assert rank(beat("w1"), mode="draining") == HELD
    assert rank() == GONE


def test_the_queue_of_a_pool_is_its_work_over_its_slots() -> None:
    table = table_of(beat("w1", queue_seconds=6.0, slots=2), beat("w2", queue_seconds=0.0, slots=4))
    assert pool_state(stations(table, POOLS, 0.0), "running").queue_s == 1.0
