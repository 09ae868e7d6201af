"""A worker's part of a device that pools share: claims it on `fleet`, and says how many tries that allows.

What may run is decided by `core/claim_holder.py` alone; here it is fed with what is read, and what it claims
is sent, one record at a time. A claim that was not acknowledged binds all the same until a later one is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.codec import encode, message_headers
from schemas.fleet_messages import FleetMessage
from services.core.claim_holder import ClaimHolder, ClaimLaw
from services.core.device_slots import DeviceSlots, shared_devices
from services.core.fleet import Fleet, Pool
from services.ports import BusError, Clock, InRecord, OutRecord, Publisher
from services.runtime.fleet_view import FleetView
from services.worker_pools.parts import WorkerParts
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget

log = structlog.get_logger(__name__)


class DeviceClaims:
    """`demand`: how many tries run now, and how many would if there were slots for them."""

    def __init__(
        self,
        worker: str,
        pool: str,
        slots: DeviceSlots,
        parts: WorkerParts,
        topic: str,
        knobs: WorkerKnobs,
        budget: SlotBudget,
    ) -> None:
        law = ClaimLaw(knobs.device_expires_s, knobs.claim_falls_after_s)
        self._holder = ClaimHolder(worker, pool, slots, law)
        self._key = f"device/{slots.device.name}/{worker}".encode()
        self._publisher: Publisher = parts.durable
        self._clock: Clock = parts.clock
        self._steady_s = parts.steady_s
        self._topic, self._knobs = topic, knobs
        self._budget = budget
        self._usable = 0
        self._claimed = False
        self._read = asyncio.Event()
        self.demand: Callable[[], tuple[int, int]] = lambda: (0, 0)
        budget.device = self.usable

    @property
    def slots(self) -> DeviceSlots:
        """The device as this worker has read it: for those who show it."""
        return self._holder.slots

    def usable(self) -> int:
        return self._holder.usable(self._steady_s())

    def heard(self, record: InRecord, message: FleetMessage | None) -> None:
        """A FleetView's listener."""
        if record.key is None:
            return
        key = record.key.decode("utf-8", "replace")
        at = record.offset, record.timestamp_ms, self._steady_s(), self._now_ms()
        self._holder.heard(key, message, *at)
        before, self._usable = self._usable, self.usable()
        if self._usable != before:
            self._read.set()
        if self._usable > before:
            self._budget.on_change()

    async def run(self) -> None:
        """Until cancelled: looks at once when a grant changed, and every `claim_every_s`."""
        while True:
            self._read.clear()
            await self._claim()
            try:
                async with asyncio.timeout(self._knobs.claim_every_s):
                    await self._read.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Nothing runs any more: the claim is taken out, if the broker answers; else it expires."""
        if self._claimed:
            await self._send(OutRecord(self._topic, self._key, None))

    async def _claim(self) -> None:
        running, wanted = self.demand()
        claim = self._holder.claim(wanted, running, self._steady_s(), self._now_ms())
        if claim is None:
            return
        self._claimed = True
        await self._send(OutRecord(self._topic, self._key, encode(claim), message_headers(claim)))

    async def _send(self, record: OutRecord) -> None:
        try:
            await self._publisher.send(record, timeout_s=self._knobs.beat_timeout_s)
        except BusError as fault:
            log.warning("claim not acknowledged", fault=str(fault))

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)


def device_claims(
    worker: str,
    pool: Pool,
    fleet: Fleet,
    parts: WorkerParts,
    topic: str,
    knobs: WorkerKnobs,
    budget: SlotBudget,
    view: FleetView,
) -> DeviceClaims | None:
    """None for a pool that shares no device."""
    if pool.device is None:
        return None
    slots = shared_devices(fleet, expires_s=knobs.device_expires_s)[pool.device]
    claims = DeviceClaims(worker, pool.name, slots, parts, topic, knobs, budget)
    view.listeners.append(claims.heard)
    return claims
