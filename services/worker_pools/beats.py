"""A worker's heartbeat: every second, and at once when its state changes; taken out when it leaves.

Law: nothing waits for a beat. One that is not acknowledged in time is dropped, for the next one says more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from schemas.codec import encode, message_headers
from schemas.fleet_messages import BackendState, WorkerBeat
from services.ports import BusError, Clock, OutRecord, Publisher
from services.worker_pools.backlog import Backlog
from services.worker_pools.gate import Gate
from services.worker_pools.progress import Progress
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget

log = structlog.get_logger(__name__)
Owned = Mapping[str, tuple[int, ...]]


class Profile:
    """What a beat says, read from the parts that know it.

    `in_flight`, `owns`, `adopted` and `backends` are asked at each beat; who makes what they show sets them.
    """

    def __init__(
        self, worker: str, pool: str, gate: Gate, budget: SlotBudget, backlog: Backlog, progress: Progress
    ) -> None:
        self._worker, self._pool = worker, pool
        self._gate, self._budget, self._backlog, self._progress = gate, budget, backlog, progress
        self.in_flight: Callable[[], int] = lambda: 0
        self.owns: Callable[[], Owned] = dict
        self.adopted: Callable[[], tuple[str, ...]] = tuple
        self.backends: Callable[[], tuple[BackendState, ...]] = tuple

    def beat(self, now_ms: int, started_ms: int) -> WorkerBeat:
        queued, progress = len(self._backlog), self._progress
        return WorkerBeat.model_construct(
            sent_ms=now_ms,
            worker=self._worker,
            pool=self._pool,
            state=self._gate.state,
            slots=self._budget.limit,
            in_flight=self.in_flight(),
            queued=queued,
            queue_seconds=queued * progress.service_s,
            service_seconds=progress.service_s,
            quiet_s=progress.quiet_s(),
            owns=self.owns(),
            adopted=self.adopted(),
            running=progress.tasks,
            backends=self.backends(),
            started_ms=started_ms,
        )


class Beats:
    """`unsent` counts beats that were not acknowledged in time."""

    def __init__(
        self, profile: Profile, publisher: Publisher, topic: str, clock: Clock, knobs: WorkerKnobs
    ) -> None:
        self._profile, self._publisher, self._topic = profile, publisher, topic
        self._clock, self._knobs = clock, knobs
        self._started_ms = self._now_ms()
        self._changed = asyncio.Event()
        self.unsent = 0

    def changed(self) -> None:
        """Something that others must know at once."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            beat = self._profile.beat(self._now_ms(), self._started_ms)
            await self._send(OutRecord(self._topic, beat.key.encode(), encode(beat), message_headers(beat)))
            try:
                async with asyncio.timeout(self._knobs.beat_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """The worker is gone: its last beat is taken out, if the broker answers."""
        beat = self._profile.beat(self._now_ms(), self._started_ms)
        await self._send(OutRecord(self._topic, beat.key.encode(), None))

    async def _send(self, record: OutRecord) -> None:
        try:
            await self._publisher.send(record, timeout_s=self._knobs.beat_timeout_s)
        except BusError as fault:
            self.unsent += 1
            log.warning("heartbeat not acknowledged", fault=str(fault), unsent=self.unsent)

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)
