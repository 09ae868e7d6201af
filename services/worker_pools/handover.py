"""Tasks that this worker goes on with although their lane record is not its own any more, or must be let go.

A parked row names this worker as holder: it is due 30 s after its last renewal, so a worker that dies gives
it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import structlog

from services.ports import BlobStore, Clock
from services.worker_pools.claimed_body import claim_body
from services.worker_pools.desk import Desk
from services.worker_pools.held import Held, Phase
from services.worker_pools.reports import Reports
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
_LOOK_S = 0.02


class HandOver:
    """`lend`: the task runs on here, held by its row. `leave`: its row has it until its next try."""

    def __init__(
        self, desk: Desk, reports: Reports, blobs: BlobStore, clock: Clock, knobs: WorkerKnobs
    ) -> None:
        self._desk = desk
        self._reports = reports
        self._blobs = blobs
        self._clock = clock
        self._knobs = knobs

    async def at_revoke(self, priority: str, partitions: Collection[int], waiting: Iterable[Held]) -> None:
        """Within the hand-over's time: what runs of these partitions is lent, what waits for a retry left."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._knobs.handover_s
        concerned = [held for held in self._desk.all() if _stands_in(held, priority, partitions)]
        moves = [self.lend(held, self._knobs.handover_s) for held in concerned if held.phase is Phase.TRYING]
        moves += [self.leave(held, self._knobs.handover_s) for held in waiting if held.attempt is not None]
        if moves:
            await asyncio.gather(*moves)
        settling = [held for held in concerned if held.phase is Phase.SETTLING]
        while any(held.positions for held in settling) and loop.time() < until_s:
            await asyncio.sleep(_LOOK_S)

    async def lend(self, held: Held, timeout_s: float) -> None:
        """A row with this worker as holder takes over from the lane record, once it is acknowledged."""
        attempt = held.attempt
        if attempt is None or held.lent:
            return
        if not await self._parked(held, attempt, self._due_ms(), timeout_s):
            return
        # Where the try ended meanwhile, its row does not hold the next one: the lane record still does.
        same_try = held.attempt == attempt and held.phase is not Phase.QUEUED
        if same_try and not held.moving and self._desk.get(held.task_id) is held:
            self._desk.lent(held)

    async def leave(self, held: Held, timeout_s: float) -> None:
        """A waiting task's row takes over, due when its next try is; the task is let go of."""
        attempt = held.attempt
        if attempt is None:
            return
        due_ms = max(held.headers.not_before_ms, self._reports.now_ms())
        if await self._parked(held, attempt, due_ms, timeout_s):
            self._desk.let_go(held, ended=False)

    async def _parked(self, held: Held, attempt: str, due_ms: int, timeout_s: float) -> bool:
        """One try at a row that can be swept; where it fails, the lane record still holds the task."""
        try:
            async with asyncio.timeout(timeout_s):
                await claim_body(held, self._blobs)
        except OSError as fault:  # a TimeoutError is one
            log.warning("body not claimed, task not parked", task_id=held.task_id, fault=str(fault))
            return False
        record = self._reports.parked(held, attempt, due_ms, envelope=True)
        return await self._reports.delivered_within(record, timeout_s)

    async def renew_forever(self) -> None:
        while True:
            await self._clock.sleep(self._knobs.renew_s)
            renewals = [self._renew(held) for held in self._desk.all() if held.lent]
            if renewals:
                await asyncio.gather(*renewals)

    async def _renew(self, held: Held) -> None:
        if held.attempt is not None:
            record = self._reports.parked(held, held.attempt, self._due_ms(), envelope=False)
            await self._reports.delivered_within(record, self._knobs.ack_timeout_s)

    def _due_ms(self) -> int:
        return int((self._clock.now_s() + self._knobs.hold_s) * 1000)


def _stands_in(held: Held, priority: str, partitions: Collection[int]) -> bool:
    return any(
        position.priority == priority and position.place.partition in partitions
        for position in held.positions
    )
