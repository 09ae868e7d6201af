"""Filter, score, pick: who may do a task, and who does it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.fleet import Pool, Price
from services.core.fleet_load import GONE, HELD, READY, SOON, PoolState
from services.core.placement import mint_for_partition, stable_partition
from services.core.routing import SCORERS, Need, NoneAble, UnknownModel, route

FAST = Pool(name="fast", model="m1", slots=4, quality=0.3, price=Price(output_per_mtok=1), prior_seconds=1.0)
STRONG = Pool(
    name="strong",
    model="m2",
    capabilities=frozenset({"chat", "coding"}),
    features=frozenset({"tools", "vision", "completions"}),
    slots=2,
    quality=0.9,
    price=Price(output_per_mtok=9),
    context_tokens=32_000,
    prior_seconds=4.0,
)
TWIN = Pool(
    name="twin", model="m1", slots=8, quality=0.2, price=Price(output_per_mtok=0.5), prior_seconds=2.0
)
EMBED = Pool(name="embed", model="e", capabilities=frozenset({"embed"}), price=Price(output_per_mtok=0))
POOLS = (FAST, STRONG, TWIN, EMBED)


def busy(**tasks: int) -> dict[str, PoolState]:
    """The load of pools with so many tasks in flight."""
    pools = {pool.name: pool for pool in POOLS}
    return {n: PoolState(k * pools[n].prior_seconds / pools[n].slots) for n, k in tasks.items()}


def need(model: str = "auto", **more: object) -> Need:
    return Need(kind="chat", model=model, **more)  # type: ignore[arg-type] # by name


def test_a_pools_name_wins_over_a_models() -> None:
    named_like_a_model = Pool(name="m1", model="other")
    assert route(need("m1"), (*POOLS, named_like_a_model), {}) is named_like_a_model


def test_a_model_means_any_pool_that_has_it() -> None:
    assert route(need("m1"), POOLS, {}) is FAST
    assert route(need("m1"), POOLS, busy(fast=9)) is TWIN


def test_an_unknown_model_is_said_to_be_unknown() -> None:
    assert route(need("m9"), POOLS, {}) == UnknownModel()


@pytest.mark.parametrize(
    ("objective", "chosen"),
    [("cost", TWIN), ("quality", STRONG), ("latency", FAST), ("balanced", FAST)],
)
def test_the_objective_decides_among_the_able(objective: str, chosen: Pool) -> None:
    assert route(need(objective=objective), POOLS, {}) is chosen


def test_latency_goes_by_queue_seconds_per_slot() -> None:
    load = busy(fast=8, strong=2, twin=4)  # 2 s, 4 s and 1 s a slot
    assert route(need(objective="latency"), POOLS, load) is TWIN


def test_what_a_request_uses_narrows_the_pools() -> None:
    assert route(need(features=frozenset({"tools"})), POOLS, {}) is STRONG
    assert route(need(capabilities=("coding",)), POOLS, {}) is STRONG
    assert route(need(capabilities=("twin",)), POOLS, {}) is TWIN
    assert route(need(input_tokens=8_000), POOLS, {}) is STRONG
    assert route(Need(kind="completion", model="auto"), POOLS, {}) is STRONG


def test_a_named_pool_is_held_to_what_the_request_uses() -> None:
    refused = route(need("fast", features=frozenset({"vision"}), capabilities=("coding",)), POOLS, {})
    assert refused == NoneAble((("fast", "capability coding, feature vision"),))


def test_a_named_pools_own_backend_judges_the_length() -> None:
    assert route(need("fast", input_tokens=10**6), POOLS, {}) is FAST


def test_none_able_says_what_each_lacks() -> None:
    refused = route(need(capabilities=("coding", "embed")), POOLS, {})
    assert isinstance(refused, NoneAble)
    assert "strong lacks capability embed" in str(refused)
    assert "embed lacks capability chat, capability coding" in str(refused)


def test_a_local_task_never_goes_to_an_external_pool() -> None:
    outside = replace(TWIN, name="outside", external=True)
    local = need("m1", data_policy="local")
    assert route(local, (FAST, outside), busy(fast=100)) is FAST
    refused = route(local, (outside,), {})
    assert isinstance(refused, NoneAble)
    assert "the data policy is local" in str(refused)
    spare = replace(FAST, fallbacks=("outside",))
    assert route(need("fast", data_policy="local"), (spare, outside), ranked(fast=GONE)) is spare


def ranked(**ranks: int) -> dict[str, PoolState]:
    return {name: PoolState(0.0, rank) for name, rank in ranks.items()}


@pytest.mark.parametrize("rank", [SOON, HELD, GONE])
def test_a_pool_of_less_use_waits_until_no_other_is_able(rank: int) -> None:
    assert route(need("m1"), POOLS, ranked(fast=rank) | {"twin": PoolState(1e3)}) is TWIN
    assert route(need("m1"), POOLS, ranked(fast=rank, twin=GONE)) is FAST
    assert route(need("fast"), POOLS, ranked(fast=rank)) is FAST


def test_the_spare_of_a_pool_without_a_worker_goes_before_it() -> None:
    spared = replace(FAST, fallbacks=("strong",))
    pools = (spared, STRONG, TWIN)
    assert route(need("fast"), pools, ranked(fast=GONE)) is STRONG
    assert route(need("fast"), pools, ranked(fast=HELD)) is spared
    assert route(need("fast"), pools, ranked(fast=GONE, strong=HELD)) is spared
    assert route(need("fast", input_tokens=10**6), pools, ranked(fast=GONE)) is spared  # it would not fit


@given(
    st.dictionaries(
        st.sampled_from([p.name for p in POOLS]), st.builds(PoolState, st.floats(0, 1e6), st.integers(0, 3))
    )
)
def test_what_is_routed_to_is_of_most_use_among_the_able(load: dict[str, PoolState]) -> None:
    routed = route(need(), POOLS, load)
    assert isinstance(routed, Pool)
    ranks = {p.name: load.get(p.name, PoolState(0, READY)).rank for p in POOLS if "chat" in p.capabilities}
    assert ranks[routed.name] == min(ranks.values())


@given(
    st.lists(st.sampled_from(POOLS), min_size=1, unique=True),
    st.dictionaries(
        st.sampled_from([p.name for p in POOLS]), st.builds(PoolState, st.floats(0, 1e6), st.integers(0, 3))
    ),
    st.sampled_from(sorted(SCORERS)),
)
def test_every_score_is_in_0_to_1(pools: list[Pool], load: dict[str, PoolState], objective: str) -> None:
    scores = SCORERS[objective](pools, need(), load)  # type: ignore[index] # sorted() widens the key
    assert len(scores) == len(pools)
    assert all(0 <= score <= 1 for score in scores)


@given(st.integers(1, 24), st.data())
def test_an_id_is_minted_whose_hash_names_the_partition(partitions: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(0, partitions - 1))
    numbers = iter(range(100_000))
    minted = mint_for_partition(lambda: f"id-{next(numbers)}", wanted, partitions)
    assert stable_partition(minted, partitions) == wanted
