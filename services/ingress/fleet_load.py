"""What the router knows of the fleet's load: heartbeats, and this replica's own tasks since.

A snapshot of the table serves for 50 ms; own tasks that were sent meanwhile count at once, so that a burst
does not all go where the snapshot saw least.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas.fleet_messages import WorkerBeat
from services.core.fleet import Pool
from services.core.fleet_load import PoolState, Station, pool_state, stations
from services.core.placement import LaneView
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_view import FleetView

_SNAPSHOT_S = 0.05


class Lane(NamedTuple):
    topic: str
    partition: int


class Load:
    """This replica's own tasks in flight: by pool for routing, by lane partition for placement."""

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self.by_pool: Counter[str] = Counter()
        self.by_lane: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._sent_s: defaultdict[Lane, deque[float]] = defaultdict(deque)

    def take(self, pool: str, lane: Lane) -> None:
        self.by_pool[pool] += 1
        self.by_lane[lane.topic][lane.partition] += 1
        self._sent_s[lane].append(self._steady_s())

    def release(self, pool: str, lane: Lane) -> None:
        """Whichever of the lane's tasks it was, the oldest time goes: the count is right, the rest near."""
        self.by_pool[pool] -= 1
        self.by_lane[lane.topic][lane.partition] -= 1
        self._sent_s[lane].popleft()

    def sent_since(self, beat: WorkerBeat, since_s: float) -> int:
        """Own tasks in flight that were sent to a worker's partitions after a time."""
        count = 0
        for topic, partitions in beat.owns.items():
            if topic not in self.by_lane:
                continue  # nothing was ever sent there
            for partition in partitions:
                for sent_s in reversed(self._sent_s.get(Lane(topic, partition), ())):
                    if sent_s <= since_s:
                        break
                    count += 1
        return count


@dataclass(frozen=True, slots=True)
class _PoolShot:
    state: PoolState
    task_s: float  # what one more task adds to the queue seconds per slot
    own: int


@dataclass(frozen=True, slots=True)
class _LaneShot:
    """`queues`: by partition its owner's queue seconds per slot, what a task adds, own tasks there then."""

    queues: Mapping[int, tuple[float, float, int]]
    ready: tuple[int, ...]
    avoid: frozenset[int]


class FleetLoad:
    """`view` None, or one that has read nothing yet: own tasks alone count."""

    def __init__(self, fleet: CurrentFleet, load: Load, view: FleetView | None) -> None:
        self._fleet, self._load, self._view = fleet, load, view
        self._taken_s = float("-inf")
        self._stations: tuple[Station, ...] = ()
        self._pools: dict[str, _PoolShot] = {}
        self._lanes: dict[str, _LaneShot] = {}

    def pools(self) -> Mapping[str, PoolState]:
        """By name."""
        self._refresh()
        own, states = self._load.by_pool, {}
        for name, shot in self._pools.items():
            more = own[name] - shot.own
            state = shot.state
            if more:
                state = replace(state, queue_s=max(0.0, state.queue_s + more * shot.task_s))
            states[name] = state
        return states

    def lane(self, topic: str) -> LaneView:
        self._refresh()
        counts, partitions = self._load.by_lane[topic], self._fleet.now.partitions
        if not self._stations:
            return LaneView(partitions, own=counts.__getitem__)
        shot = self._lanes.get(topic)
        if shot is None:
            shot = self._lanes[topic] = self._lane_shot(topic)

        queues = shot.queues

        def queue_s(partition: int) -> float:
            if partition not in queues:
                return 0.0
            told_s, task_s, own = queues[partition]
            more = counts[partition] - own
            return told_s + more * task_s if more > 0 else told_s

        return LaneView(partitions, shot.ready, shot.avoid, queue_s, counts.__getitem__)

    def _refresh(self) -> None:
        view = self._view
        now_s = 0.0 if view is None else view.now_s()
        if now_s - self._taken_s < _SNAPSHOT_S and view is not None:
            return
        self._taken_s = now_s
        known = view is not None and view.caught_up.is_set()
        self._lanes.clear()
        pools = self._fleet.now.pools
        self._stations = ()
        if view is not None and known:
            self._stations = stations(
                view.table, {pool.name: pool for pool in pools}, now_s, self._load.sent_since
            )
        self._pools = {pool.name: self._pool_shot(pool, view) for pool in pools}

    def _pool_shot(self, pool: Pool, view: FleetView | None) -> _PoolShot:
        own = self._load.by_pool[pool.name]
        if view is None or not self._stations:
            task_s = pool.prior_seconds / pool.slots
            return _PoolShot(PoolState(own * task_s), task_s, own)
        of_pool = [station for station in self._stations if station.pool == pool.name]
        state = pool_state(of_pool, view.table.mode(pool.name))
        slots = sum(station.slots for station in of_pool) or pool.slots
        usual_s = of_pool[0].usual_s if of_pool else pool.prior_seconds
        return _PoolShot(state, usual_s / slots, own)

    def _lane_shot(self, topic: str) -> _LaneShot:
        owners: dict[int, Station] = {}
        avoid: set[int] = set()
        for station in self._stations:
            for partition in station.owns.get(topic, ()):
                if not 0 <= partition < self._fleet.now.partitions:
                    continue  # nothing can be sent there, whoever says that it is his
                if station.standing in ("ready", "stuck"):
                    owners[partition] = station
                elif station.standing == "draining":
                    avoid.add(partition)
        if self._view is not None:
            for member in self._view.table.members():
                if self._view.table.is_dead(member.beat.worker, self._taken_s):
                    avoid.update(member.beat.owns.get(topic, ()))
        counts = self._load.by_lane[topic]
        queues = {
            partition: (owner.queue_s, owner.usual_s / max(1, owner.slots), counts[partition])
            for partition, owner in owners.items()
        }
        return _LaneShot(queues, tuple(sorted(owners)), frozenset(avoid - owners.keys()))
