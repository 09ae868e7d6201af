"""The pool's slots: filled from the backlog, free again when a try is over, not when its end is known."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from services.ports import Clock
from services.worker_pools.backlog import Backlog
from services.worker_pools.endings import Endings
from services.worker_pools.gate import Gate
from services.worker_pools.held import Held, Phase
from services.worker_pools.serving import After, Serving
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget

log = structlog.get_logger(__name__)
_LEAST_WAIT_S = 0.001


class Slots:
    """`work` has every task that is tried or settled; where those are too many, nothing more is started."""

    def __init__(
        self,
        budget: SlotBudget,
        gate: Gate,
        backlog: Backlog,
        serving: Serving,
        endings: Endings,
        clock: Clock,
        knobs: WorkerKnobs,
    ) -> None:
        self._budget = budget
        self._gate = gate
        self._most_work = budget.most + knobs.unsettled
        self._backlog = backlog
        self._serving = serving
        self._endings = endings
        self._clock = clock
        self._crowded = False
        self._due_timer: asyncio.TimerHandle | None = None
        self.work: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        budget.on_change = gate.on_open = self.fill

    @property
    def free(self) -> int:
        return max(0, self._budget.limit - self.in_flight)

    def close(self) -> None:
        """Nothing starts any more."""
        self._gate.hold("draining")
        self._disarm()

    def fill(self) -> None:
        """Ends what is past its deadline and fills the free slots."""
        if not self._gate.serves:
            return
        now_s = self._clock.now_s()
        for held in self._backlog.expired(now_s):
            self.spawn(self._endings.past_deadline(held))
        while self._gate.is_open and self.free > 0 and len(self.work) < self._most_work:
            started = self._backlog.pop(now_s)
            if started is None:
                break
            started.phase, started.attempt = Phase.TRYING, None
            self.in_flight += 1
            self.spawn(self._serve(started))
        self._crowded = len(self.work) >= self._most_work
        self._arm(now_s)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.work.add(task)
        task.add_done_callback(self._finished)

    async def _serve(self, held: Held) -> None:
        try:
            settle = await self._serving.tried(held)
        except Exception:
            log.exception("a try broke inside the worker", task_id=held.task_id)
            settle = self._endings.broken(held)
        finally:
            if held.watch is not None:
                held.watch.finish()
            held.watch = None
            held.phase = Phase.SETTLING
            self.in_flight -= 1
            self.fill()
        if settle is not None:
            await self._settled(held, settle)

    async def _settled(self, held: Held, settle: After) -> None:
        """A task that could be neither tried nor ended would hold its offset, and its partition, for ever."""
        try:
            await settle
        except Exception:
            log.exception("the end of a try could not be written", task_id=held.task_id)
            await self._endings.broken(held)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self.work.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            # Its offset stays uncommitted: the task comes again after a restart, here or elsewhere.
            log.error("a task could not be brought to its end", exc_info=fault)
        if self._crowded:
            self.fill()

    def _arm(self, now_s: float) -> None:
        """Wakes for the next retry that becomes due."""
        self._disarm()
        due_s = self._backlog.next_due() if self.free > 0 and self._gate.is_open else None
        if due_s is not None:
            wait_s = max(_LEAST_WAIT_S, due_s - now_s)
            self._due_timer = asyncio.get_running_loop().call_later(wait_s, self.fill)

    def _disarm(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
