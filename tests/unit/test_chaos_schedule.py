"""The schedule of a chaos run: what must hold of every seed."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadtest.chaos.schedule import BROKER_KINDS, MOODS, SESSION_S, Fault, Shape, draw

SHAPES = st.builds(
    Shape,
    workers=st.just(("w1", "w2", "w3")),
    ingresses=st.just(("i1", "i2")),
    backends=st.just(("b1", "b2")),
    nodes=st.just(3),
    seconds=st.floats(12.0, 40.0),
    start_s=st.floats(0.0, 3.0),
)
SEEDS = st.integers(0, 2**31)
SHAPE = Shape(("w1", "w2", "w3"), ("i1", "i2"), ("b1", "b2"))


def _overlap(faults: list[Fault]) -> bool:
    in_order = sorted(faults, key=lambda fault: fault.at_s)
    return any(after.at_s < before.until_s for before, after in pairwise(in_order))


@given(SEEDS, SHAPES)
def test_every_fault_begins_after_the_start_and_is_healed_by_the_end(seed: int, shape: Shape) -> None:
    for fault in draw(seed, shape):
        assert shape.start_s <= fault.at_s + 1e-3
        assert fault.at_s <= fault.until_s <= shape.seconds + 1e-3


@given(SEEDS, SHAPES)
def test_at_most_one_broker_node_is_out_at_a_time_or_all_of_them(seed: int, shape: Shape) -> None:
    brokers = [fault for fault in draw(seed, shape) if fault.kind in BROKER_KINDS]
    assert brokers
    assert not _overlap(brokers)
    if any(fault.kind == "cluster_restart" for fault in brokers):
        assert len(brokers) == 1


@given(SEEDS, SHAPES)
def test_no_target_has_two_faults_at_once(seed: int, shape: Shape) -> None:
    by_target = defaultdict(list)
    for fault in draw(seed, shape):
        by_target[fault.target].append(fault)
    assert not any(_overlap(faults) for faults in by_target.values())


@given(SEEDS, SHAPES)
def test_a_seed_is_one_schedule(seed: int, shape: Shape) -> None:
    assert draw(seed, shape) == draw(seed, shape)


def test_fifty_seeds_have_every_kind_of_fault_and_every_mood() -> None:
    """Freezes of workers on both sides of the session time-out, too."""
    faults = [fault for seed in range(1, 51) for fault in draw(seed, SHAPE)]
    kinds = {fault.kind for fault in faults}
    assert kinds >= BROKER_KINDS | {"worker_kill", "ingress_kill", "orchestrator_kill", "rebalance"}
    assert kinds >= {"worker_freeze", "database_freeze", "backend"}
    assert {fault.mood for fault in faults if fault.mood} == set(MOODS)
    frozen_s = [fault.until_s - fault.at_s for fault in faults if fault.kind == "worker_freeze"]
    assert min(frozen_s) < SESSION_S < max(frozen_s)
    assert {fault.target for fault in faults if fault.kind == "worker_kill"} == set(SHAPE.workers)
