"""Taking a pool out of a running fleet: what still waits on its lanes."""

from __future__ import annotations

import asyncio

from schemas.topics import PRIORITIES
from services.cli.bus_reading import undone
from services.cli.running_fleet import RunningFleet

_LOOK_EVERY_S = 0.5


async def emptied(running: RunningFleet, pool: str, *, within_s: float) -> int:
    """Waits until all on the pool's lanes is done; how many offsets are not, at the end. Raises BusError."""
    names, loop = running.names, asyncio.get_running_loop()
    lanes = {names.lane(pool, one): names.lane_group(pool, one) for one in PRIORITIES}
    deadline = loop.time() + within_s
    while True:
        left = sum([await undone(running, group, lane) for lane, group in lanes.items()])
        if not left or loop.time() >= deadline:
            return left
        await asyncio.sleep(_LOOK_EVERY_S)
