"""A worker in the fleet: what it says of itself there, what it hears of the others and of its pool."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.topics import TopicNames
from services.core.fleet import Fleet, Pool
from services.core.fleet_table import FleetTable, stall_bounds
from services.runtime.fleet_view import FleetView
from services.worker_pools.backlog import Backlog
from services.worker_pools.beats import Beats, Profile
from services.worker_pools.gate import Gate
from services.worker_pools.parts import WorkerParts
from services.worker_pools.pool_orders import PoolOrders
from services.worker_pools.progress import Progress
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget


@dataclass(frozen=True, slots=True)
class Presence:
    """The worker runs `view` and `beats`; `progress` hears of its tries, `profile` is what a beat says."""

    view: FleetView
    progress: Progress
    profile: Profile
    beats: Beats


def present(
    worker: str,
    pool: Pool,
    fleet: Fleet,
    parts: WorkerParts,
    knobs: WorkerKnobs,
    gate: Gate,
    budget: SlotBudget,
    backlog: Backlog,
) -> Presence:
    """Nothing is read or sent yet. The gate is held while the pool is paused, and its changes are told."""
    view = FleetView(parts.fleet, FleetTable(stalled_after_s=stall_bounds(fleet)), parts.steady_s)
    PoolOrders(pool.name, view, gate)
    progress = Progress(pool.prior_seconds, parts.steady_s)
    profile = Profile(worker, pool.name, gate, budget, backlog, progress)
    beats = Beats(profile, parts.durable, TopicNames(fleet.prefix).fleet, parts.clock, knobs)
    gate.on_change = beats.changed
    return Presence(view, progress, profile, beats)
