"""A worker in the fleet: what it says of itself there, what it hears of the others and of its pool."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from schemas.topics import TopicNames
from services.core.fleet import Fleet, Pool
from services.core.fleet_table import FleetTable, stall_bounds
from services.runtime.fleet_view import FleetView
from services.worker_pools.backlog import Backlog
from services.worker_pools.beats import Beats, Profile
from services.worker_pools.device_claims import DeviceClaims, device_claims
from services.worker_pools.gate import Gate
from services.worker_pools.parts import WorkerParts
from services.worker_pools.pool_orders import PoolOrders
from services.worker_pools.progress import Progress
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget


@dataclass(frozen=True, slots=True)
class Presence:
    """The worker runs `loops`; `progress` hears of its tries, `profile` is what a beat says; `claims` are
    those on the device that its pool shares, if it does."""

    view: FleetView
    progress: Progress
    profile: Profile
    beats: Beats
    claims: DeviceClaims | None

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Each runs until cancelled."""
        ours = [self.view.run(), self.beats.run()]
        return ours if self.claims is None else [*ours, self.claims.run()]

    async def leave(self) -> None:
        """Nothing runs any more, and the others may know."""
        if self.claims is not None:
            await self.claims.leave()
        await self.beats.leave()


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
    topic = TopicNames(fleet.prefix).fleet
    beats = Beats(profile, parts.durable, topic, parts.clock, knobs)
    gate.on_change = beats.changed
    claims = device_claims(worker, pool, fleet, parts, topic, knobs, budget, view)
    if claims is not None:
        claims.demand = _Demand(profile, backlog, gate, budget)
    return Presence(view, progress, profile, beats, claims)


@dataclass(frozen=True, slots=True)
class _Demand:
    """What runs, and what would run if the device had slots for it."""

    profile: Profile
    backlog: Backlog
    gate: Gate
    budget: SlotBudget

    def __call__(self) -> tuple[int, int]:
        running = self.profile.in_flight()
        waiting = len(self.backlog) if self.gate.is_open else 0
        return running, min(self.budget.backends, running + waiting)
