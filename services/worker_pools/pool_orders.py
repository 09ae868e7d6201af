"""What an operator wants of the pool, as `fleet` has it: while it is not running, nothing starts."""

from __future__ import annotations

import structlog

from schemas.fleet_messages import FleetMessage
from services.ports import InRecord
from services.runtime.fleet_view import FleetView
from services.worker_pools.gate import Gate

log = structlog.get_logger(__name__)


class PoolOrders:
    """Listens to the view. What waits in a draining pool is moved by who re-routes, never started here."""

    def __init__(self, pool: str, view: FleetView, gate: Gate) -> None:
        self._pool, self._view, self._gate = pool, view, gate
        self._key = f"pool/{pool}".encode()
        view.listeners.append(self._heard)

    def _heard(self, record: InRecord, _: FleetMessage | None) -> None:
        if record.key != self._key:
            return
        mode = self._view.table.mode(self._pool)
        log.info("pool order", pool=self._pool, mode=mode)
        if mode == "running":
            self._gate.release("paused")
        else:
            self._gate.hold("paused")
