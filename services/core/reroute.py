"""May a task be done elsewhere, and where: forwarding, fallback, adoption and late binding, in one function.

Laws: never against what the task needs (capabilities, features, context, data policy); at most two hops, and
only the first of them for the load's sake, so that nothing goes to and fro; never to where it could not start
before its deadline; a sticky session moves only from where nobody works for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode
from schemas.messages import Affinity, Failure
from schemas.topics import Priority, TopicNames
from services.core.fleet import Pool
from services.core.fleet_load import PoolState, Station
from services.core.placement import stable_partition
from services.core.routing import AUTO, Need, candidates, lacks, pick, price_usd

MOST_HOPS = 2
Cause = Literal["late", "tail", "drained", "no_backend", "orphaned"]
"""Why a task is looked at: it cannot start here in time; it waits behind full slots; an operator drains the
pool; no backend may be called; its pool has no worker, and this one adopted the lane."""
_FOR_LOAD: frozenset[Cause] = frozenset({"late", "tail"})
_WARM_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class RerouteLaw:
    """Seconds. A move from where the task will start must gain move_gain_s and move_gain of a usual task; the
    prefix that a session has warm here counts as three more of both. A task that nobody can do is parked for
    half its age, between park_least_s and park_most_s. late_factor: predictions err, so only a least wait of
    that many times what is left is certain to be too long.
    """

    move_gain_s: float = 0.25
    move_gain: float = 0.25
    park_least_s: float = 2.0
    park_most_s: float = 30.0
    late_factor: float = 4.0

    def scaled(self, factor: float) -> RerouteLaw:
        """The times of parking by `factor`; gains are against times of work, which no setting scales."""
        return replace(self, park_least_s=self.park_least_s * factor, park_most_s=self.park_most_s * factor)


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What is known of a task. `asked`: the pool it was first sent to; times on the caller's clock."""

    task_id: str
    need: Need
    asked: str
    priority: Priority
    deadline_s: float
    arrived_s: float
    hops: int = 0
    session_id: str | None = None
    affinity: Affinity = "soft"

    @property
    def sticky(self) -> bool:
        return self.session_id is not None and self.affinity == "sticky"

    @property
    def warm(self) -> bool:
        """Whether its session may have a prefix in the worker's cache."""
        return self.session_id is not None and self.affinity != "off"


@dataclass(frozen=True, slots=True)
class Here:
    """Where the task waits, and why it is looked at.

    wait_s: until it may start, inf where nothing starts; least_s: the least that it waits in any order, by
    times that were measured here (0: none were).
    """

    pool: str
    worker: str
    cause: Cause
    wait_s: float = float("inf")
    usual_s: float = 1.0
    least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet as the newest heartbeats show it."""

    names: TopicNames
    partitions: int
    pools: tuple[Pool, ...]
    stations: tuple[Station, ...]
    modes: Mapping[str, PoolMode]

    def pool(self, name: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def takers(self) -> list[Station]:
        """Workers that take work now."""
        return [
            station
            for station in self.stations
            if station.standing == "ready" and self.modes.get(station.pool, "running") == "running"
        ]


@dataclass(frozen=True, slots=True)
class Stay:
    """It waits where it is."""


@dataclass(frozen=True, slots=True)
class Move:
    """To a partition of another lane, or of the same one at another worker."""

    lane: str
    partition: int
    pool: str
    worker: str


@dataclass(frozen=True, slots=True)
class Park:
    """Nobody can do it now; looked at again at `due_s`."""

    due_s: float


@dataclass(frozen=True, slots=True)
class Fail:
    failure: Failure


Rerouted = Stay | Move | Park | Fail


def reroute(task: TaskFacts, here: Here, fleet: FleetSnapshot, law: RerouteLaw, now_s: float) -> Rerouted:
    """Where the task goes from here. Pure; the caller acts on it."""
    left_s = task.deadline_s - now_s
    if left_s <= 0:
        return Stay() if here.cause != "orphaned" else _too_late(here)
    able, lacking = able_pools(task, fleet.pools)
    if task.hops < MOST_HOPS and not (here.cause in _FOR_LOAD and (task.hops or task.sticky)):
        target = _target(task, here, fleet, able, law, left_s)
        if target is not None:
            return _move(task, here, fleet, target)
    if here.cause == "late" and here.least_s > law.late_factor * left_s:
        return _too_late(here)
    if here.cause == "orphaned":
        return _held_back(task, here, able, lacking, law, now_s)
    return Stay()


def able_pools(task: TaskFacts, pools: Sequence[Pool]) -> tuple[list[Pool], list[tuple[str, str]]]:
    """The pools that may do it, the one it was sent to included; of the others what each lacks.

    Who names a pool means it, those of the same model and its fallbacks; who names a model, all that have it
    and their fallbacks; `auto` means all.
    """
    asked = task.need.model or task.asked
    named = list(candidates(asked, pools) or candidates(task.asked, pools))
    if asked != AUTO:
        models = {pool.model for pool in named}
        spares = {name for pool in named for name in pool.fallbacks}
        named += [p for p in pools if p not in named and (p.model in models or p.name in spares)]
    lacking = [(pool, lacks(pool, task.need, whole=pool.name != task.asked)) for pool in named]
    able = [pool for pool, what in lacking if what is None]
    return able, [(pool.name, what) for pool, what in lacking if what is not None]


def _target(
    task: TaskFacts, here: Here, fleet: FleetSnapshot, able: list[Pool], law: RerouteLaw, left_s: float
) -> Station | None:
    allowed = {pool.name: pool for pool in able}
    reachable = [station for station in fleet.takers() if station.pool in allowed and station.wait_s < left_s]
    if here.cause in ("drained", "orphaned"):  # an adopter may well do what it adopted, in its own pool
        reachable = [station for station in reachable if station.pool != here.pool]
    else:
        reachable = [station for station in reachable if station.worker != here.worker]
    reachable = [station for station in reachable if _is_gain(task, here, station, law)]
    if here.cause == "tail":
        mine = fleet.pool(here.pool)
        reachable = [s for s in reachable if mine is None or _as_good(task.need, allowed[s.pool], mine)]
        return min(reachable, key=_completion_s, default=None)
    if not reachable:
        return None
    loads = {name: PoolState(_least_wait_s(reachable, name)) for name in {s.pool for s in reachable}}
    pool = pick([allowed[name] for name in sorted(loads)], task.need, loads)
    return min((s for s in reachable if s.pool == pool.name), key=_completion_s)


def _is_gain(task: TaskFacts, here: Here, station: Station, law: RerouteLaw) -> bool:
    """To be over sooner by more than errors of prediction; late binding needs a free slot there too."""
    if here.cause == "tail" and station.free <= 0:
        return False
    margin_s = law.move_gain_s + law.move_gain * max(here.usual_s, station.usual_s)
    gain_s = here.wait_s + here.usual_s - _completion_s(station)
    return gain_s > margin_s * (_WARM_FACTOR if task.warm else 1.0)


def _as_good(need: Need, pool: Pool, mine: Pool) -> bool:
    """What was asked for is not given up for a shorter wait."""
    if need.objective == "cost":
        return price_usd(pool, need) <= price_usd(mine, need)
    return need.objective != "quality" or pool.quality >= mine.quality


def _completion_s(station: Station) -> float:
    return station.wait_s + station.usual_s


def _least_wait_s(stations: Sequence[Station], pool: str) -> float:
    return min(station.wait_s for station in stations if station.pool == pool)


def _move(task: TaskFacts, here: Here, fleet: FleetSnapshot, station: Station) -> Move:
    """To a partition of the worker's own; a sticky session to the one that is its own in every lane."""
    lane = fleet.names.lane(station.pool, task.priority)
    own = stable_partition(task.session_id or task.task_id, fleet.partitions)
    if task.sticky and here.cause not in _FOR_LOAD:
        return Move(lane, own, station.pool, station.worker)
    # A record for a partition that is none would never be acknowledged, and the task never let go of.
    owned = [each for each in station.owns.get(lane, ()) if 0 <= each < fleet.partitions]
    partition = owned[stable_partition(task.task_id, len(owned))] if owned else own
    return Move(lane, partition, station.pool, station.worker)


def _held_back(
    task: TaskFacts,
    here: Here,
    able: list[Pool],
    lacking: list[tuple[str, str]],
    law: RerouteLaw,
    now_s: float,
) -> Park | Fail:
    age_s = max(0.0, now_s - task.arrived_s)
    pause_s = min(law.park_most_s, max(law.park_least_s, age_s / 2))
    others = task.hops < MOST_HOPS and any(pool.name != here.pool for pool in able)
    if others or now_s + pause_s < task.deadline_s:
        return Park(now_s + pause_s)
    reasons = [f"{pool} lacks {what}" for pool, what in lacking if pool != here.pool]
    if task.hops >= MOST_HOPS:
        reasons = [f"it was moved {task.hops} times already"]
    why = "; ".join(reasons) or "no other pool may do this"
    return _failed(FailureKind.NO_POOL, f"no worker of pool {here.pool} is alive: {why}")


def _too_late(here: Here) -> Fail:
    if here.cause == "orphaned":
        message = f"the deadline passed while no worker of pool {here.pool} was alive"
    else:
        message = f"pool {here.pool} cannot begin before the deadline, nor can any other that may do this"
    return _failed(FailureKind.DEADLINE, message)


def _failed(kind: FailureKind, message: str) -> Fail:
    return Fail(Failure(kind=kind, message=message))
