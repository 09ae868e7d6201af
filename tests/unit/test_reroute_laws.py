"""What a move never does, whatever the fleet looks like."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_messages import PoolMode
from services.core.fleet_load import Station
from services.core.reroute import (
    MOST_HOPS,
    Here,
    Move,
    Park,
    Stay,
    TaskFacts,
    reroute,
)
from services.core.routing import Need, lacks
from tests.reroute_cases import (
    CAUSES,
    LAW,
    NAMES,
    NOW_S,
    PARTITIONS,
    POOLS,
    STOPPED,
    fleet,
    station,
)

STATIONS = st.lists(
    st.builds(
        Station,
        worker=st.sampled_from(["me", "w1", "w2", "w3"]),
        pool=st.sampled_from(["a", "b", "outside"]),
        standing=st.sampled_from(["ready", "stuck", "loading", "draining"]),
        slots=st.integers(0, 4),
        free=st.integers(0, 4),
        work_s=st.floats(0, 500),
        usual_s=st.floats(0.01, 50),
        owns=st.sampled_from([{}, {NAMES.lane("b", "interactive"): (2,)}]),
    ),
    max_size=5,
)
TASKS = st.builds(
    TaskFacts,
    task_id=st.text(min_size=1, max_size=5),
    need=st.builds(
        Need,
        kind=st.sampled_from(["chat", "completion", "embedding"]),
        model=st.sampled_from(["auto", "a", "b", "m", "other", ""]),
        objective=st.sampled_from(["cost", "quality", "balanced"]),
        capabilities=st.sampled_from([(), ("coding",), ("a",)]),
        features=st.sampled_from([frozenset(), frozenset({"tools"})]),
        input_tokens=st.sampled_from([10, 5_000]),
        data_policy=st.sampled_from(["any", "local"]),
    ),
    asked=st.sampled_from(["a", "b"]),
    priority=st.sampled_from(["interactive", "batch"]),
    deadline_s=st.floats(NOW_S - 1, NOW_S + 300),
    arrived_s=st.floats(NOW_S - 300, NOW_S),
    hops=st.integers(0, 3),
    session_id=st.none() | st.just("s"),
    affinity=st.sampled_from(["sticky", "soft", "off"]),
)
HERES = st.builds(
    Here, st.just("a"), st.just("me"), st.sampled_from(CAUSES), st.floats(0, 1e3), st.floats(0.01, 20)
)
MODES = st.dictionaries(st.sampled_from(["a", "b", "outside"]), st.sampled_from(STOPPED))


@given(TASKS, HERES, STATIONS, MODES)
def test_no_move_breaks_a_law(
    facts: TaskFacts, at: Here, stations: list[Station], modes: dict[str, PoolMode]
) -> None:
    step = reroute(facts, at, fleet(*stations, modes=modes), LAW, NOW_S)
    if not isinstance(step, Move):
        return
    pool = next(pool for pool in POOLS if pool.name == step.pool)
    assert lacks(pool, facts.need, whole=pool.name != facts.asked) is None
    assert not (pool.external and facts.need.data_policy == "local")
    assert facts.hops < MOST_HOPS
    assert facts.deadline_s > NOW_S
    assert (step.pool, step.worker) != ("a", "me")
    assert step.pool not in modes
    assert step.lane == NAMES.lane(step.pool, facts.priority)
    assert 0 <= step.partition < PARTITIONS
    taken = [one for one in stations if one.worker == step.worker and one.pool == step.pool]
    assert any(one.standing == "ready" and one.wait_s < facts.deadline_s - NOW_S for one in taken)
    if facts.need.model in ("a", "b"):
        assert step.pool in {"a": ("a", "b", "outside"), "b": ("b",)}[facts.need.model]
    if at.cause in ("late", "tail"):
        assert facts.hops == 0
        assert not (facts.affinity == "sticky" and facts.session_id)


@given(TASKS, HERES, STATIONS)
def test_only_orphans_are_parked_and_what_is_due_is_later_than_now(
    facts: TaskFacts, at: Here, stations: list[Station]
) -> None:
    step = reroute(facts, at, fleet(*stations), LAW, NOW_S)
    if isinstance(step, Park):
        assert at.cause == "orphaned"
        assert NOW_S + LAW.park_least_s <= step.due_s <= NOW_S + LAW.park_most_s
    if at.cause == "orphaned":
        assert not isinstance(step, Stay)


@given(TASKS, st.floats(0, 100), st.floats(0, 100), st.floats(0.01, 20), st.floats(0.01, 20))
def test_a_tail_never_goes_to_and_fro(
    facts: TaskFacts, here_s: float, there_s: float, usual_a: float, usual_b: float
) -> None:
    """Wherever the load moved it, and whatever it finds there, the load does not move it again."""
    at = Here("a", "me", "tail", here_s, usual_a)
    step = reroute(facts, at, fleet(station("b", usual_s=usual_b)), LAW, NOW_S)
    if isinstance(step, Move):
        moved = replace(facts, hops=facts.hops + 1)
        back = Here("b", step.worker, "tail", there_s, usual_b)
        assert reroute(moved, back, fleet(station("a", "me")), LAW, NOW_S) == Stay()
