"""The log of the last minutes as evidence: what ended how in each pool, and what became of sessions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas.failures import FailureKind
from schemas.fleet_messages import WorkerBeat
from schemas.messages import AttemptFailed, Message, RunTask, TaskClosed, TaskFailed, TaskSucceeded, Try
from services.core.diagnosis import BackendEvidence, PoolEvidence
from services.core.fleet import Fleet, Pool
from services.core.fleet_table import FleetTable
from services.core.routing import AUTO

_NOT_A_FAULT = frozenset({FailureKind.CANCELLED, FailureKind.EVICTED})


@dataclass(slots=True)
class _Seen:
    succeeded: int = 0
    cut: int = 0
    auto: int = 0
    queue_ms: list[float] = field(default_factory=list)
    first_token_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)
    failures: Counter[FailureKind] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Happened:
    """What the log and the lanes say, by pool and by session."""

    pools: Mapping[str, _Seen]
    lost_streams: int
    sessions: int
    moved_sessions: tuple[str, ...]
    shared_sessions: tuple[str, ...]


def happened(results: Iterable[Message], tasks: Iterable[RunTask]) -> Happened:
    """Folds records of `results` and the lane records of the same time."""
    asked = {task.task_id: task for task in tasks}
    pools: defaultdict[str, _Seen] = defaultdict(_Seen)
    workers: defaultdict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    lost_streams = 0
    for record in results:
        run = getattr(record, "run", None)
        if isinstance(record, TaskSucceeded):
            _succeeded(pools[record.run.pool], record, asked.get(record.task_id))
        elif isinstance(record, AttemptFailed | TaskFailed):
            if record.failure.kind not in _NOT_A_FAULT:
                pools[_pool_of(record, asked)].failures[record.failure.kind] += 1
        elif isinstance(record, TaskClosed) and record.reason == "interrupted":
            lost_streams += 1
        task = asked.get(record.task_id)
        if (
            isinstance(run, Try)
            and task is not None
            and task.session_id
            and isinstance(record, TaskSucceeded)
        ):
            workers[task.session_id].add(run.worker)
            counts[task.session_id] += 1
    tenants: defaultdict[str, set[str]] = defaultdict(set)
    for task in asked.values():
        if task.session_id:
            tenants[task.session_id].add(task.tenant)
    return Happened(
        pools,
        lost_streams,
        sum(1 for count in counts.values() if count > 1),
        tuple(sorted(name for name, at in workers.items() if len(at) > 1)),
        tuple(sorted(name for name, of in tenants.items() if len(of) > 1)),
    )


def _succeeded(seen: _Seen, record: TaskSucceeded, task: RunTask | None) -> None:
    seen.succeeded += 1
    seen.queue_ms.append(record.timing.queue_ms)
    seen.first_token_ms.append(record.timing.first_token_ms)
    seen.decode_ms.append(record.timing.decode_ms)
    seen.cut += _was_cut(record.answer.inline)
    seen.auto += task is not None and task.model == AUTO


def _was_cut(answer: Any) -> bool:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "length" for choice in choices
    )


def _pool_of(record: AttemptFailed | TaskFailed, asked: Mapping[str, RunTask]) -> str:
    if record.run is not None:
        return record.run.pool
    task = asked.get(record.task_id)
    return "" if task is None else task.pool


def pool_evidence(fleet: Fleet, table: FleetTable, now_s: float, seen: Happened) -> list[PoolEvidence]:
    """Each pool of the fleet as heartbeats and the log show it."""
    dead: defaultdict[str, list[str]] = defaultdict(list)
    for member in table.members():
        if table.is_dead(member.beat.worker, now_s):
            dead[member.beat.pool].append(member.beat.worker)
    return [
        _of_pool(pool, table, table.alive(pool.name, now_s), dead[pool.name], seen.pools.get(pool.name))
        for pool in fleet.pools
    ]


def _of_pool(
    pool: Pool, table: FleetTable, alive: Sequence[WorkerBeat], dead: Sequence[str], seen: _Seen | None
) -> PoolEvidence:
    ready = [beat for beat in alive if beat.state == "ready"]
    seen = seen or _Seen()
    slots = sum(beat.slots for beat in ready)
    return PoolEvidence(
        name=pool.name,
        quality=pool.quality,
        mode=table.mode(pool.name),
        ready=len(ready),
        loading=sum(1 for beat in alive if beat.state == "loading"),
        dead=tuple(dead),
        slots=slots,
        configured=pool.slots * len(ready),
        in_flight=sum(beat.in_flight for beat in ready),
        queued=sum(beat.queued for beat in ready),
        queue_s=sum(beat.queue_seconds for beat in ready) / max(1, slots),
        backends=tuple(
            BackendEvidence(state.base_url, state.health, state.breaker, state.waiting)
            for beat in alive
            for state in beat.backends
        ),
        device=pool.device,
        succeeded=seen.succeeded,
        cut=seen.cut,
        queue_ms=_quantiles(seen.queue_ms),
        first_token_ms=_quantiles(seen.first_token_ms),
        decode_ms=_quantiles(seen.decode_ms),
        failures=dict(seen.failures),
        auto=seen.auto,
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile (nearest rank); zeros where there is none."""
    if not values:
        return 0.0, 0.0
    ranked = sorted(values)
    return ranked[(len(ranked) - 1) // 2], ranked[min(len(ranked) - 1, int(len(ranked) * 0.95))]
