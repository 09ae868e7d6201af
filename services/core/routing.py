"""Which pool does a task: filter, score 0..1, pick. Pure: the load is a snapshot that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.messages import Objective, TaskKind, Usage
from services.core.fleet import Pool

AUTO = "auto"
_USUAL_OUTPUT_TOKENS = 256  # for comparing prices where the caller sets no limit
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


@dataclass(frozen=True, slots=True)
class UnknownModel:
    """No pool has the name and none the model."""


@dataclass(frozen=True, slots=True)
class NoneAble:
    """Pools were there, and each lacks something: (pool, what it lacks)."""

    lacking: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{pool} lacks {what}" for pool, what in self.lacking)


Load = Mapping[str, int]
Scorer = Callable[[Sequence[Pool], Need, Load], list[float]]


def route(need: Need, pools: Sequence[Pool], in_flight: Load) -> Pool | UnknownModel | NoneAble:
    """The pool for a task. `in_flight` counts tasks by pool name; a pool not in it has none."""
    named = candidates(need.model, pools)
    if not named:
        return UnknownModel()
    lacking = [(pool, lacks(pool, need)) for pool in named]
    able = [pool for pool, what in lacking if what is None]
    if not able:
        return NoneAble(tuple((pool.name, what) for pool, what in lacking if what is not None))
    return able[0] if len(able) == 1 else pick(able, need, in_flight)


def candidates(model: str, pools: Sequence[Pool]) -> Sequence[Pool]:
    """All pools for `auto`, else the pool of that name, else those of that model."""
    if model == AUTO:
        return pools
    return [pool for pool in pools if pool.name == model] or [pool for pool in pools if pool.model == model]


def lacks(pool: Pool, need: Need) -> str | None:
    """What a pool lacks for a need, or None.

    Where the caller names a model, its kind and the estimated length are left to the backend, which knows.
    """
    offered = pool.capabilities | {pool.name}
    wanted = need.capabilities
    if need.model == AUTO and need.kind in _KIND_CAPABILITY:
        wanted = (_KIND_CAPABILITY[need.kind], *wanted)
    features = need.features
    if need.model == AUTO and need.kind in _KIND_FEATURE:
        features = features | {_KIND_FEATURE[need.kind]}
    missing = [f"capability {name}" for name in wanted if name not in offered]
    missing += [f"feature {name}" for name in sorted(features) if name not in pool.features | offered]
    tokens = need.input_tokens + (need.output_tokens or 1)
    if need.model == AUTO and tokens > pool.context_tokens:
        missing.append(f"context for about {tokens} tokens (it has {pool.context_tokens})")
    return ", ".join(missing) or None


def pick(pools: Sequence[Pool], need: Need, in_flight: Load) -> Pool:
    """The best by the objective's score; equals are told apart by their queue, then by their usual speed."""
    scores = SCORERS[need.objective](pools, need, in_flight)
    queues = fewest_queue_seconds(pools, need, in_flight)
    ranked = [
        (-round(score, 9), -round(queue, 9), pool.prior_seconds, position)
        for position, (pool, score, queue) in enumerate(zip(pools, scores, queues, strict=True))
    ]
    return pools[min(ranked)[-1]]


def fewest_queue_seconds(pools: Sequence[Pool], _: Need, in_flight: Load) -> list[float]:
    """1 for an empty pool, falling with the queue seconds per slot (tasks x usual seconds / slots)."""
    return [1 / (1 + in_flight.get(p.name, 0) * p.prior_seconds / p.slots) for p in pools]


def cheapest(pools: Sequence[Pool], need: Need, _: Load) -> list[float]:
    """1 for the lowest estimated price of this request, 0 for the highest."""
    usage = Usage(input_tokens=need.input_tokens, output_tokens=need.output_tokens or _USUAL_OUTPUT_TOKENS)
    costs = [pool.price.cost_usd(usage, pool.prior_seconds) for pool in pools]
    low, high = min(costs), max(costs)
    return [1.0 if high == low else (high - cost) / (high - low) for cost in costs]


def strongest(pools: Sequence[Pool], _need: Need, _load: Load) -> list[float]:
    return [pool.quality for pool in pools]


SCORERS: Mapping[Objective, Scorer] = {
    "latency": fewest_queue_seconds,
    "balanced": fewest_queue_seconds,
    "cost": cheapest,
    "quality": strongest,
}
