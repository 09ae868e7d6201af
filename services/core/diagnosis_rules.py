"""The rules of the doctor. Each looks for one cause, and says with numbers why it thinks so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas.failures import FailureKind as Kind
from services.core.diagnosis import FEW, Evidence, Finding, PoolEvidence, Rule

SLOW_QUEUE_MS = 500.0
SLOW_FIRST_MS = 3_000.0
SLOW_BUS_MS = 50.0
MANY = 0.1  # a share of attempts that is more than chance
CUT = 0.2
BOOKS_BEHIND = 5_000


def parts_down(evidence: Evidence) -> list[Finding]:
    """What nothing works without."""
    found = []
    if evidence.bus_ms is None:
        found.append(
            Finding("down", "broker", "the broker does not answer", "start it, or mend its address", 1.0)
        )
    if not evidence.database_up:
        cure = "start it; chats go on meanwhile, calls with an Idempotency-Key and the books wait"
        found.append(Finding("down", "database", "the database does not answer", cure, 0.8))
    if not evidence.edge_up:
        found.append(
            Finding("down", "ingress", "the edge is not ready", "look at its log; start it again", 0.95)
        )
    found += [
        Finding("down", "topics", fault, "chimera topics apply", 0.9) for fault in evidence.topics_wrong
    ]
    if evidence.books_behind > BOOKS_BEHIND:
        cause = f"{evidence.books_behind} records are not in the rows yet"
        cure = "look at the orchestrator and the database: parked work waits for them"
        found.append(Finding("slow", "bookkeeper", cause, cure, 0.4))
    return found


def pools_without_workers(evidence: Evidence) -> list[Finding]:
    return [finding for pool in evidence.pools for finding in _without_workers(pool)]


def _without_workers(pool: PoolEvidence) -> Iterator[Finding]:
    if pool.dead:
        cause = f"{len(pool.dead)} of its workers are dead or stalled: {', '.join(pool.dead[:3])}"
        weight = 0.5 if pool.ready else 0.9
        yield Finding("down", pool.name, cause, "look at their logs; start them again", weight)
    if pool.mode != "running":
        cause, cure = f"an operator's order says {pool.mode}", f"chimera pools resume {pool.name}"
        yield Finding("slow" if pool.queued else "down", pool.name, cause, cure, 0.85)
    elif not pool.ready and pool.loading:
        cause = "its workers wait for a model that loads or does not answer"
        yield Finding("down", pool.name, cause, "look at the model server's log and address", 0.85)
    elif not pool.ready and not pool.dead:
        yield Finding("down", pool.name, "it has no worker", "start one", 0.85)


def backends_out(evidence: Evidence) -> list[Finding]:
    found = []
    for pool in evidence.pools:
        for backend in pool.backends:
            if backend.health == "unavailable":
                cause = (
                    f"{backend.base_url} is left alone (breaker {backend.breaker}) after failing too often"
                )
                found.append(
                    Finding("fails_under_load", pool.name, cause, "mend or replace that server", 0.8)
                )
            elif backend.health == "slow":
                cause = f"{backend.base_url} answers far slower than it used to"
                found.append(Finding("slow", pool.name, cause, "look at that server's load and memory", 0.6))
    return found


def long_queues(evidence: Evidence) -> list[Finding]:
    """Time goes into waiting for a slot: why there is none."""
    found = []
    for pool in evidence.pools:
        waited_ms = pool.queue_ms[1] if pool.succeeded >= FEW else 0.0
        waits = max(waited_ms, pool.queue_s * 1000 if pool.queued else 0.0)
        if waits < SLOW_QUEUE_MS or pool.mode != "running" or not pool.ready:
            continue
        cause, cure = _why_no_slot(pool)
        found.append(
            Finding("slow", pool.name, f"work waits {waits / 1000:.1f} s for a slot: {cause}", cure, 0.7)
        )
    return found


def _why_no_slot(pool: PoolEvidence) -> tuple[str, str]:
    inside = sum(backend.waiting or 0.0 for backend in pool.backends)
    if pool.slots < pool.configured:
        if pool.device is not None:
            return (
                f"it may use {pool.slots} of {pool.configured} slots, the device {pool.device} is shared",
                "raise the device's slots or this pool's device_reserved, or move a pool to another device",
            )
        return (
            f"its backends take only {pool.slots} of {pool.configured} tries at once without getting slower",
            "add a backend or a worker; more slots would not help",
        )
    if inside >= 1:
        return (
            f"its slots are full and {inside:.0f} requests wait inside the server too",
            "add a backend, or lower slots to what the server really runs at once",
        )
    if pool.in_flight < pool.slots:
        return (
            f"only {pool.in_flight} of {pool.slots} slots work: the waiting tasks are held by few workers",
            "raise partitions above the number of workers, or use affinity off for this work",
        )
    return f"all {pool.slots} slots work", "add a worker or a backend, or raise slots if the server has room"


def slow_models(evidence: Evidence) -> list[Finding]:
    """Time goes into the model."""
    found = []
    for pool in evidence.pools:
        if pool.succeeded < FEW:
            continue
        first, decode, queue = pool.first_token_ms[1], pool.decode_ms[1], pool.queue_ms[1]
        if first > SLOW_FIRST_MS and first > queue and first > decode:
            cause = (
                f"the first token takes {first / 1000:.1f} s (95 %): long prompts, or a queue in the server"
            )
            cure = "lower slots, cache prefixes (affinity sticky), or move long prompts to another pool"
            found.append(Finding("slow", pool.name, cause, cure, 0.55))
        elif decode > 2 * max(queue, first) and decode > SLOW_FIRST_MS:
            cause = f"answers take {decode / 1000:.1f} s to be said (95 %)"
            cure = "limit max_tokens, lower slots if the server slows down by load, or use a faster model"
            found.append(Finding("slow", pool.name, cause, cure, 0.35))
    return found


def slow_bus(evidence: Evidence) -> list[Finding]:
    if evidence.bus_ms is None or evidence.bus_ms < SLOW_BUS_MS:
        return []
    cause = f"a record takes {evidence.bus_ms:.0f} ms to be acknowledged"
    return [Finding("slow", "broker", cause, "look at the broker's disk, memory and network", 0.6)]


def cut_answers(evidence: Evidence) -> list[Finding]:
    found = []
    for pool in evidence.pools:
        if pool.succeeded >= FEW and pool.cut / pool.succeeded > CUT:
            cause = f"{pool.cut} of {pool.succeeded} answers were cut off for their length"
            cure = "raise max_tokens, or use a pool with more context"
            found.append(Finding("poor", pool.name, cause, cure, 0.7))
        empty = pool.failed(Kind.BAD_ANSWER)
        if pool.ended >= FEW and empty / pool.ended > MANY:
            cause = f"{empty} of {pool.ended} answers were empty or of a wrong shape"
            cure = "look at the model's chat template and its server's version"
            found.append(Finding("poor", pool.name, cause, cure, 0.75))
    return found


def weak_pool_chosen(evidence: Evidence) -> list[Finding]:
    """`auto` goes to the fastest able pool; where a better one is out of service it hardly has a choice."""
    found = []
    best = max((pool.quality for pool in evidence.pools), default=0.0)
    for pool in evidence.pools:
        if pool.auto < FEW or pool.quality >= best:
            continue
        better = [other for other in evidence.pools if other.quality > pool.quality]
        out = [other.name for other in better if not other.ready or other.mode != "running"]
        if out:
            cause = f"{pool.auto} calls went to this weaker pool while {', '.join(out)} was out of service"
            found.append(Finding("poor", pool.name, cause, f"bring {out[0]} back", 0.65))
        else:
            cause = f"{pool.auto} calls left the choice to the router, which took the faster, weaker pool"
            cure = (
                "ask with x-chimera-objective: quality, or require a capability that only the better one has"
            )
            found.append(Finding("poor", pool.name, cause, cure, 0.3))
    return found


def broken_streams(evidence: Evidence) -> list[Finding]:
    found = []
    for pool in evidence.pools:
        broken = pool.failed(Kind.INTERRUPTED, Kind.RESET)
        silent = pool.failed(Kind.IDLE_TIMEOUT, Kind.TOO_SLOW)
        if pool.ended >= FEW and broken / pool.ended > MANY:
            cause = f"its backends broke off {broken} of {pool.ended} answers"
            cure = "look at that server's log: it restarts, runs out of memory, or a proxy cuts long answers"
            found.append(Finding("broken_streams", pool.name, cause, cure, 0.8))
        if pool.ended >= FEW and silent / pool.ended > MANY:
            cause = f"{silent} of {pool.ended} answers fell silent for longer than the pool allows"
            cure = "raise timeouts.idle_s or lower min_tokens_per_s if that is usual, else lower slots"
            found.append(Finding("broken_streams", pool.name, cause, cure, 0.75))
    if evidence.lost_streams:
        dead = [worker for pool in evidence.pools for worker in pool.dead]
        by = f"; dead or stalled: {', '.join(dead[:3])}" if dead else ""
        cause = f"{evidence.lost_streams} streams lost their worker after they had begun{by}"
        cure = "look for workers that were killed (memory) or rolled out without a drain"
        found.append(Finding("broken_streams", "workers", cause, cure, 0.7))
    return found


def mixed_sessions(evidence: Evidence) -> list[Finding]:
    found = []
    swapped = [probe for probe in evidence.probes if probe.mixed]
    if swapped:
        cause = f"{len(swapped)} probes were answered with another one's answer"
        cure = (
            "take out the cache or proxy between the workers and this model: its key is not the whole request"
        )
        found.append(Finding("mixed_sessions", swapped[0].pool, cause, cure, 1.0))
    if evidence.shared_sessions:
        cause = f"sessions are used by several tenants: {', '.join(evidence.shared_sessions[:3])}"
        cure = "make session ids unique: a tenant's name in front is enough"
        found.append(Finding("mixed_sessions", "callers", cause, cure, 0.8))
    if evidence.sessions >= FEW and len(evidence.moved_sessions) / evidence.sessions > MANY:
        cause = f"{len(evidence.moved_sessions)} of {evidence.sessions} sessions moved between workers"
        cure = "use x-chimera-affinity: sticky; moves follow rebalances, busy owners and affinity off"
        found.append(Finding("mixed_sessions", "placement", cause, cure, 0.5))
    return found


def overload(evidence: Evidence) -> list[Finding]:
    found = []
    for pool in evidence.pools:
        if pool.ended < FEW:
            continue
        refused = pool.failed(Kind.RATE_LIMITED, Kind.OVERLOADED)
        if refused / pool.ended > MANY:
            cause = f"its provider refused {refused} of {pool.ended} tries (429, 503)"
            cure = "ask for a higher limit, lower slots, or name fallbacks for this pool"
            found.append(Finding("fails_under_load", pool.name, cause, cure, 0.8))
        late = pool.failed(Kind.DEADLINE, Kind.NO_SLOT, Kind.TOTAL_TIMEOUT)
        if late / pool.ended > MANY:
            cause = f"{late} of {pool.ended} tasks were too late; {pool.queued} wait for {pool.slots} slots"
            cure = "add workers or backends, or give this work a later deadline or a lower priority"
            found.append(Finding("fails_under_load", pool.name, cause, cure, 0.75))
        out = pool.failed(Kind.SERVER_ERROR, Kind.UNREACHABLE, Kind.FIRST_TOKEN_TIMEOUT)
        if out / pool.ended > MANY:
            cause = f"its backends failed {out} of {pool.ended} tries"
            cure = "look at that server's log; lower slots if it fails only under load"
            found.append(Finding("fails_under_load", pool.name, cause, cure, 0.78))
        keys = pool.failed(Kind.KEY_REFUSED, Kind.NOT_FOUND)
        if keys:
            cause = f"its provider refused our key or does not know the model ({keys} times)"
            cure = "mend api_key or backend_model in the fleet file"
            found.append(Finding("down", pool.name, cause, cure, 0.9))
    return found


def failed_probes(evidence: Evidence) -> list[Finding]:
    failed = [probe for probe in evidence.probes if not probe.good and not probe.mixed]
    return [
        Finding("down", probe.pool, f"a probe was not answered: {probe.said}", "see the other findings", 0.6)
        for probe in failed[:3]
    ]


RULES: Sequence[Rule] = (
    parts_down,
    pools_without_workers,
    backends_out,
    long_queues,
    slow_models,
    slow_bus,
    cut_answers,
    weak_pool_chosen,
    broken_streams,
    mixed_sessions,
    overload,
    failed_probes,
)
