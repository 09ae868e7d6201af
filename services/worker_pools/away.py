"""What a worker does for tasks that are better off elsewhere, put together once: its own, and orphans."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from services.runtime.current_fleet import CurrentFleet
from services.worker_pools.adopted_lane import AdopterParts
from services.worker_pools.adoption import Adoption
from services.worker_pools.crew import Crew, Identity
from services.worker_pools.moving import Moving
from services.worker_pools.parts import WorkerParts
from services.worker_pools.rerouting import Rerouting
from services.worker_pools.settings import WorkerKnobs


@dataclass(frozen=True, slots=True)
class Away:
    """`rerouting` is told of arrivals and ticks; `adoption` runs beside the lanes. `fleet` is followed: pools
    come and go while this worker's own stays what it was started with."""

    fleet: CurrentFleet
    rerouting: Rerouting
    adoption: Adoption

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """They run until cancelled."""
        return self.adoption.run(), self.fleet.follow()


def away(identity: Identity, crew: Crew, parts: WorkerParts, knobs: WorkerKnobs) -> Away:
    """Nothing runs yet. The heartbeat tells what is adopted."""
    fleet = CurrentFleet(identity.fleet, parts.fleet_file)
    moving = Moving(fleet, crew.view, crew.reports)
    adopters = AdopterParts(
        identity.worker,
        fleet,
        moving,
        crew.reports,
        crew.desk,
        parts.blobs,
        parts.clock,
        parts.new_attempt,
        knobs,
    )
    beats, profile = crew.presence.beats, crew.presence.profile
    adoption = Adoption(identity.pool.name, crew.view, parts.lane_source, adopters, beats.changed)
    profile.adopted = adoption.adopted
    return Away(fleet, Rerouting(identity.worker, identity.pool, crew, moving, parts.clock, knobs), adoption)
