"""How loaded the fleet is: heartbeats as places to send work to, corrected for their age.

Work is in seconds of one slot. A worker that runs n tries works n seconds off in every second, so what a beat
said is worth less the older it is; what this process sent there since is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.fleet_messages import PoolMode, WorkerBeat
from services.core.fleet import Pool
from services.core.fleet_table import FleetTable

Standing = Literal["ready", "stuck", "loading", "draining"]
SentSince = Callable[[WorkerBeat, float], int]
"""How many tasks this process sent to a worker since a time, as far as they are not known to be over."""

_OLDEST_S = 5.0  # a beat older than that says nothing; nothing is worked off by its age


@dataclass(frozen=True, slots=True)
class Station:
    """A living worker. `stuck`: it is ready, and none of its backends may be called now.

    free: slots that nothing waits for; work_s: what it has to do, in seconds of one slot; usual_s: of a task.
    """

    worker: str
    pool: str
    standing: Standing
    slots: int
    free: int
    work_s: float
    usual_s: float
    owns: Mapping[str, tuple[int, ...]]

    @property
    def queue_s(self) -> float:
        """Its work per slot."""
        return self.work_s / max(1, self.slots)

    @property
    def wait_s(self) -> float:
        """Until a slot is free for a task that comes now; inf where nothing may start."""
        if self.standing != "ready" or self.slots == 0:
            return float("inf")
        return 0.0 if self.free > 0 else self.queue_s


def _nothing_sent(_beat: WorkerBeat, _since_s: float) -> int:
    return 0


def stations(
    table: FleetTable, pools: Mapping[str, Pool], now_s: float, sent_since: SentSince = _nothing_sent
) -> tuple[Station, ...]:
    """All living workers of these pools."""
    found = []
    for member in table.members():
        beat = member.beat
        pool = pools.get(beat.pool)
        if pool is None or table.is_dead(beat.worker, now_s):
            continue
        usual_s = beat.service_seconds or pool.prior_seconds
        sent = sent_since(beat, member.heard_s)
        age_s = min(max(0.0, now_s - member.heard_s), _OLDEST_S)
        found.append(
            Station(
                worker=beat.worker,
                pool=beat.pool,
                standing=_standing(beat),
                slots=beat.slots,
                free=max(0, beat.slots - beat.in_flight - beat.queued - sent),
                work_s=work_s(beat, age_s, usual_s) + sent * usual_s,
                usual_s=usual_s,
                owns=beat.owns,
            )
        )
    return tuple(found)


def work_s(beat: WorkerBeat, age_s: float, usual_s: float) -> float:
    """What waits and half of what runs (the mean rest of a try), less what was worked off since."""
    told_s = beat.queue_seconds + beat.in_flight * usual_s / 2
    return max(0.0, told_s - age_s * min(beat.in_flight, beat.slots))


def _standing(beat: WorkerBeat) -> Standing:
    if beat.state != "ready":
        return beat.state
    out = beat.backends and all(one.breaker == "open" or one.health == "unavailable" for one in beat.backends)
    return "stuck" if out else "ready"


@dataclass(frozen=True, slots=True)
class PoolState:
    """What is known of a pool now: its work per slot in seconds, and how much use it is.

    rank: 0 takes work; 1 will (its workers load, or no backend may be called just now); 2 is paused or
    drained by an operator; 3 has no living worker. A pool of which nothing is known is of use.
    """

    queue_s: float = 0.0
    rank: int = 0


READY, SOON, HELD, GONE = range(4)
NOTHING_KNOWN = PoolState()


def pool_state(of_pool: Iterable[Station], mode: PoolMode) -> PoolState:
    """The state of a pool with these living workers."""
    living = list(of_pool)
    ready = [station for station in living if station.standing == "ready"]
    counted = ready or living
    slots = sum(station.slots for station in counted)
    queue_s = sum(station.work_s for station in counted) / max(1, slots)
    if not living:
        return PoolState(queue_s, GONE)
    if mode != "running":
        return PoolState(queue_s, HELD)
    return PoolState(queue_s, READY if ready else SOON)
