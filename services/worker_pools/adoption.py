"""Lanes of pools without a worker: adopted by one worker of the fleet, given back when their pool lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from schemas.fleet_messages import FleetMessage, WorkerBeat
from schemas.topics import PRIORITIES, Priority
from services.core.adoption import to_adopt
from services.ports import GroupSource, InRecord
from services.runtime.fleet_view import FleetView
from services.worker_pools.adopted_lane import AdoptedLane, AdopterParts

log = structlog.get_logger(__name__)


class Adoption:
    """`run` until cancelled; then `leave`. `changed` is called when a lane was adopted or given back."""

    def __init__(
        self,
        own_pool: str,
        view: FleetView,
        lane_source: Callable[[str, Priority], GroupSource],
        parts: AdopterParts,
        changed: Callable[[], None],
    ) -> None:
        self._view, self._lane_source, self._parts, self._changed = view, lane_source, parts, changed
        self._knobs = parts.knobs
        self._own_pool = own_pool
        self._lanes: dict[str, list[AdoptedLane]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._look = asyncio.Event()
        self._left = False
        view.listeners.append(self._heard)

    def _others(self) -> tuple[str, ...]:
        return tuple(pool.name for pool in self._parts.fleet.now.pools if pool.name != self._own_pool)

    def adopted(self) -> tuple[str, ...]:
        """Lane topics, for the heartbeat."""
        return tuple(lane.topic for lanes in self._lanes.values() for lane in lanes)

    def owns(self) -> Mapping[str, tuple[int, ...]]:
        """Partitions by lane topic."""
        return {lane.topic: lane.owned for lanes in self._lanes.values() for lane in lanes}

    async def run(self) -> None:
        """Looks every so often, and when a pool that was adopted is heard of again."""
        await self._view.caught_up.wait()
        read_since_s = self._view.now_s()
        while True:
            self._look.clear()
            await self._turn(read_since_s)
            try:
                async with asyncio.timeout(self._knobs.adopt_look_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Gives all lanes back, for good."""
        self._left = True
        for pool in tuple(self._lanes):
            await self._give_back(pool)

    def _heard(self, _: InRecord, message: FleetMessage | None) -> None:
        if isinstance(message, WorkerBeat) and message.state != "draining" and message.pool in self._lanes:
            self._look.set()

    async def _turn(self, read_since_s: float) -> None:
        now_s = self._view.now_s()
        wanted = to_adopt(
            self._parts.worker,
            self._others(),
            self._view.table,
            now_s,
            now_s - read_since_s,
            self._knobs.adopt_after_s,
        )
        broken = {pool for pool, running in self._running.items() if running.done()}
        for pool in broken | self._lanes.keys() - set(wanted):
            await self._give_back(pool)
        for pool in wanted:
            if pool not in self._lanes and not self._left:
                self._adopt(pool)

    def _adopt(self, pool: str) -> None:
        log.warning("no worker of a pool for long: its lanes are adopted", pool=pool)
        lanes = [
            AdoptedLane(pool, priority, self._lane_source(pool, priority), self._parts)
            for priority in PRIORITIES
        ]
        self._lanes[pool] = lanes
        self._running[pool] = asyncio.create_task(self._read(pool, lanes))
        self._changed()

    async def _read(self, pool: str, lanes: list[AdoptedLane]) -> None:
        """A lane that broke is a fault of ours, and no reason for this worker to end: the next look gives the
        pool back, whose partitions nobody else could read, and adopts it anew."""
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(lane.run())
        except Exception:
            log.exception("an adopted lane broke", pool=pool)

    async def _give_back(self, pool: str) -> None:
        lanes, running = self._lanes.pop(pool), self._running.pop(pool)
        log.info("adopted lanes given back", pool=pool)
        await asyncio.gather(*(lane.leave() for lane in lanes))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self._changed()
