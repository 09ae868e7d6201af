"""Which pool does a task: filter, score 0..1, pick. Pure: the load is a snapshot that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.messages import DataPolicy, Objective, TaskKind, Usage
from services.core.fleet import Pool, does
from services.core.fleet_load import GONE, NOTHING_KNOWN, READY, PoolState
from services.core.work_size import USUAL_OUTPUT_TOKENS

AUTO = "auto"
_KIND_CAPABILITY: Mapping[TaskKind, str] = {"chat": "chat", "completion": "chat", "embedding": "embed"}
_KIND_FEATURE: Mapping[TaskKind, str] = {"completion": "completions"}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs of a pool. Token counts are estimates."""

    kind: TaskKind
    model: str
    objective: Objective = "balanced"
    capabilities: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    input_tokens: int = 0
    output_tokens: int | None = None
    data_policy: DataPolicy = "any"


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """No pool has the name and none the model."""


@dataclass(frozen=True, slots=True)
class NoneAble:
    """Pools were there, and each lacks something: (pool, what it lacks)."""

    lacking: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{pool} lacks {what}" for pool, what in self.lacking)


Load = Mapping[str, PoolState]
"""By the pool's name; of a pool that is not in it nothing is known."""
Scorer = Callable[[Sequence[Pool], Need, Load], list[float]]


def route(need: Need, pools: Sequence[Pool], load: Load) -> Pool | UnknownModel | NoneAble:
    """The pool for a task, among the able ones of most use (`PoolState.rank`).

    Where none that was asked for has a living worker, a fallback of theirs that takes work goes before them.
    """
    named = candidates(need.model, pools)
    if not named:
        return UnknownModel()
    lacking = [(pool, lacks(pool, need)) for pool in named]
    able = [pool for pool, what in lacking if what is None]
    if not able:
        return NoneAble(tuple((pool.name, what) for pool, what in lacking if what is not None))
    best = min(_rank(pool, load) for pool in able)
    if best == GONE:
        able = _spares(able, need, pools, load) or able
    else:
        able = [pool for pool in able if _rank(pool, load) == best]
    return able[0] if len(able) == 1 else pick(able, need, load)


def candidates(model: str, pools: Sequence[Pool]) -> Sequence[Pool]:
    """All pools for `auto`, else the pool of that name, else those of that model."""
    if model == AUTO:
        return pools
    return [pool for pool in pools if pool.name == model] or [pool for pool in pools if pool.model == model]


def lacks(pool: Pool, need: Need, *, whole: bool = False) -> str | None:
    """What a pool lacks for a need, or None.

    Where the caller names a model, its kind and the estimated length are left to the backend, which knows;
    `whole` looks at them all the same: for a pool that the caller did not name.
    """
    if not does(pool.backend, need.kind):
        return f"tasks of kind {need.kind} (its backend is {pool.backend})"
    whole = whole or need.model == AUTO
    offered = pool.capabilities | {pool.name}
    wanted, features = need.capabilities, need.features
    # An embedding needs its capability in a named pool too: a chat model's server has none to give.
    if need.kind in _KIND_CAPABILITY and (whole or need.kind == "embedding"):
        wanted = (_KIND_CAPABILITY[need.kind], *wanted)
    if whole and need.kind in _KIND_FEATURE:
        features = features | {_KIND_FEATURE[need.kind]}
    missing = [f"capability {name}" for name in wanted if name not in offered]
    missing += [f"feature {name}" for name in sorted(features) if name not in pool.features | offered]
    tokens = need.input_tokens + (need.output_tokens or 1)
    if whole and tokens > pool.context_tokens:
        missing.append(f"context for about {tokens} tokens (it has {pool.context_tokens})")
    if not pool.takes(need.data_policy):
        missing.append("a backend of our own (the data policy is local)")
    return ", ".join(missing) or None


def pick(pools: Sequence[Pool], need: Need, load: Load) -> Pool:
    """The best by the objective's score; equals are told apart by their queue, then by their usual speed."""
    scores = SCORERS[need.objective](pools, need, load)
    queues = fewest_queue_seconds(pools, need, load)
    ranked = [
        (-round(score, 9), -round(queue, 9), pool.prior_seconds, position)
        for position, (pool, score, queue) in enumerate(zip(pools, scores, queues, strict=True))
    ]
    return pools[min(ranked)[-1]]


def fewest_queue_seconds(pools: Sequence[Pool], _: Need, load: Load) -> list[float]:
    """1 for an empty pool, falling with its queue seconds per slot."""
    return [1 / (1 + load.get(pool.name, NOTHING_KNOWN).queue_s) for pool in pools]


def cheapest(pools: Sequence[Pool], need: Need, _: Load) -> list[float]:
    """1 for the lowest estimated price of this request, 0 for the highest."""
    costs = [price_usd(pool, need) for pool in pools]
    low, high = min(costs), max(costs)
    return [1.0 if high == low else (high - cost) / (high - low) for cost in costs]


def price_usd(pool: Pool, need: Need) -> float:
    """What the request would cost there, as estimated."""
    output_tokens = need.output_tokens or USUAL_OUTPUT_TOKENS
    usage = Usage(input_tokens=max(0, need.input_tokens), output_tokens=max(0, output_tokens))
    return pool.price.cost_usd(usage, pool.prior_seconds)


def strongest(pools: Sequence[Pool], _need: Need, _load: Load) -> list[float]:
    return [pool.quality for pool in pools]


SCORERS: Mapping[Objective, Scorer] = {
    "latency": fewest_queue_seconds,
    "balanced": fewest_queue_seconds,
    "cost": cheapest,
    "quality": strongest,
}


def _rank(pool: Pool, load: Load) -> int:
    return load.get(pool.name, NOTHING_KNOWN).rank


def _spares(named: Sequence[Pool], need: Need, pools: Sequence[Pool], load: Load) -> list[Pool]:
    names = {name for pool in named for name in pool.fallbacks}
    return [
        pool
        for pool in pools
        if pool.name in names and _rank(pool, load) == READY and lacks(pool, need, whole=True) is None
    ]
