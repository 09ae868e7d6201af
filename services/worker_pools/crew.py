"""Who does what in a worker: every part of it, put together once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schemas.messages import CancelTask
from schemas.topics import TopicNames
from services.core.eviction import EvictionLaw
from services.core.fleet import Fleet, Pool
from services.core.order import RANKS
from services.core.retry import RetryPolicy
from services.runtime.fleet_view import FleetView
from services.worker_pools.backends import Backends
from services.worker_pools.backlog import Backlog, Sharing
from services.worker_pools.chunk_sender import ChunkPump
from services.worker_pools.control import Control
from services.worker_pools.desk import Desk
from services.worker_pools.endings import Endings
from services.worker_pools.evictions import Evictions
from services.worker_pools.gate import Gate
from services.worker_pools.handover import HandOver
from services.worker_pools.held import Position
from services.worker_pools.parts import WorkerParts
from services.worker_pools.presence import Presence, present
from services.worker_pools.reports import Reports
from services.worker_pools.serving import Serving
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget
from services.worker_pools.slot_gauges import SlotGauges
from services.worker_pools.slots import Slots
from services.worker_pools.starts import Starts
from services.worker_pools.tries import Tries
from services.worker_pools.warm_up import BackendWatch
from services.worker_pools.worker_metrics import WorkerMetrics


@dataclass(frozen=True, slots=True)
class Identity:
    """Which worker this is, of which pool, in which fleet."""

    worker: str
    pool: Pool
    fleet: Fleet

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.fleet.prefix)


@dataclass(frozen=True, slots=True)
class Crew:
    """The parts of one worker."""

    gate: Gate
    budget: SlotBudget
    backlog: Backlog
    desk: Desk
    reports: Reports
    pump: ChunkPump
    endings: Endings
    backends: Backends
    backend_watch: BackendWatch
    serving: Serving
    slots: Slots
    evictions: Evictions
    hand_over: HandOver
    control: Control
    presence: Presence

    @property
    def view(self) -> FleetView:
        """The fleet as this worker sees it."""
        return self.presence.view


@dataclass(frozen=True, slots=True)
class _Holding:
    """What holds tasks and speaks of them, tried or not."""

    gate: Gate
    budget: SlotBudget
    backlog: Backlog
    desk: Desk
    reports: Reports
    pump: ChunkPump
    endings: Endings
    presence: Presence


def assembled(
    identity: Identity,
    parts: WorkerParts,
    knobs: WorkerKnobs,
    metrics: WorkerMetrics,
    done: Callable[[Position], None],
    cancel: Callable[[CancelTask], None],
) -> Crew:
    """A worker's parts; nothing runs yet. `done` completes an offset, `cancel` hears of `control`."""
    pool, held = identity.pool, _holding(identity, parts, knobs, done)
    backends = Backends(pool, parts.uniform, held.gate, parts.steady_s, watched=parts.look is not None)
    backends.budget = held.budget
    serving, slots, evictions = _serving(identity, parts, knobs, metrics, held, backends)
    held.presence.profile.in_flight = lambda: slots.in_flight
    held.presence.profile.backends = backends.states
    metrics.show(SlotGauges(pool.name, held.budget, held.presence.claims))
    return Crew(
        gate=held.gate,
        budget=held.budget,
        backlog=held.backlog,
        desk=held.desk,
        reports=held.reports,
        pump=held.pump,
        endings=held.endings,
        backends=backends,
        backend_watch=BackendWatch(
            pool, backends, parts.model, parts.look, parts.connections, parts.new_attempt, knobs
        ),
        serving=serving,
        slots=slots,
        evictions=evictions,
        hand_over=HandOver(held.desk, held.reports, parts.blobs, parts.clock, knobs),
        control=Control(parts.control, parts.clock, knobs, cancel),
        presence=held.presence,
    )


def _holding(
    identity: Identity, parts: WorkerParts, knobs: WorkerKnobs, done: Callable[[Position], None]
) -> _Holding:
    pool, fleet = identity.pool, identity.fleet
    gate, budget = Gate("starting"), SlotBudget(pool)
    sharing = Sharing(fleet.tenant_weights, knobs.tenant_burst_tokens, RANKS[knobs.order])
    backlog = Backlog(
        fleet.weights, knobs.held_tasks, knobs.held_bytes, sharing=sharing, prior_s=pool.prior_seconds
    )
    desk = Desk(backlog, parts.clock, done)
    reports = Reports(parts.durable, identity.names, identity.worker, parts.clock, knobs, parts.journal)
    policy = RetryPolicy(max_tries=fleet.max_tries)
    return _Holding(
        gate,
        budget,
        backlog,
        desk,
        reports,
        ChunkPump(parts.chunks, identity.names.replies, knobs.chunk_backlog, knobs.chunk_backlog_bytes),
        Endings(desk, reports, parts.blobs, parts.clock, parts.uniform, policy),
        present(identity.worker, pool, fleet, parts, knobs, gate, budget, backlog),
    )


def _serving(
    identity: Identity,
    parts: WorkerParts,
    knobs: WorkerKnobs,
    metrics: WorkerMetrics,
    held: _Holding,
    backends: Backends,
) -> tuple[Serving, Slots, Evictions]:
    pool, fleet = identity.pool, identity.fleet
    starts = Starts(pool, held.reports, parts.blobs, parts.clock, parts.new_attempt)
    tries = Tries(pool, parts.model, backends, held.pump, parts.clock, knobs, held.presence.progress)
    serving = Serving(
        held.desk, held.reports, held.endings, starts, tries, backends, parts.clock, metrics.ended
    )
    law = EvictionLaw(fleet.interactive_wait_s) if fleet.evict_batch else None
    evictions = Evictions(held.backlog, law)
    slots = Slots(
        *(held.budget, held.gate, held.backlog, serving, held.endings, parts.clock, knobs, evictions),
        pool.reserved_interactive,
    )
    tries.batches.seats, slots.joinable = slots, tries.batches.joinable
    return serving, slots, evictions
