"""An operator's order to a pool, written to `fleet`."""

from __future__ import annotations

import getpass
import socket
import time

from schemas.codec import encode, message_headers
from schemas.fleet_messages import PoolMode, PoolOrder
from services.cli.bus_reading import publisher_of
from services.cli.running_fleet import RunningFleet
from services.ports import OutRecord

_ACK_S = 15.0


async def give_order(running: RunningFleet, pool: str, mode: PoolMode, reason: str) -> PoolOrder:
    """Returns the order once the broker has it: it stands until the next one. Raises BusError."""
    order = PoolOrder(
        sent_ms=time.time_ns() // 1_000_000,
        pool=pool,
        mode=mode,
        by=f"{getpass.getuser()}@{socket.gethostname()}",
        reason=reason,
    )
    headers = message_headers(order)
    await _send(running, OutRecord(running.names.fleet, order.key.encode(), encode(order), headers, 0))
    return order


async def take_back(running: RunningFleet, pool: str) -> None:
    """No order stands for the pool any more. Raises BusError."""
    await _send(running, OutRecord(running.names.fleet, f"pool/{pool}".encode(), None, [], 0))


async def _send(running: RunningFleet, record: OutRecord) -> None:
    async with publisher_of(running) as publisher:
        await publisher.send(record, timeout_s=_ACK_S)
