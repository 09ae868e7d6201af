"""Taking a pool out of a running fleet: what still waits on its lanes."""

from __future__ import annotations

import asyncio

from schemas.topics import PRIORITIES
from services.adapters.kafka.end_offsets import end_offsets
from services.cli.bus_reading import committed_offsets
from services.cli.running_fleet import RunningFleet

_ANSWER_S = 10.0
_LOOK_EVERY_S = 0.5


async def emptied(running: RunningFleet, pool: str, *, within_s: float) -> int:
    """Waits until all on the pool's lanes is done; how many offsets are not, at the end. Raises BusError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        left = sum([await _undone(running, pool, priority) for priority in PRIORITIES])
        if not left or loop.time() >= deadline:
            return left
        await asyncio.sleep(_LOOK_EVERY_S)


async def _undone(running: RunningFleet, pool: str, priority: str) -> int:
    lane = running.names.lane(pool, priority)
    done = await committed_offsets(running, running.names.lane_group(pool, priority), lane)
    ends = await end_offsets(
        running.bootstrap_servers,
        running.traits,
        topic=lane,
        partitions=range(running.fleet.partitions),
        client_id="chimera-cli",
        timeout_s=_ANSWER_S,
    )
    return sum(max(0, end - max(0, done.get(partition, 0))) for partition, end in ends.items())
