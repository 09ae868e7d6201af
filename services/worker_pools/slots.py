"""The pool's slots: filled from the backlog, free again when a try is over, not when its end is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from schemas.topics import PRIORITIES
from services.ports import Clock
from services.worker_pools.backlog import Backlog
from services.worker_pools.endings import Endings
from services.worker_pools.evictions import Evictions
from services.worker_pools.gate import Gate
from services.worker_pools.held import Held, Phase
from services.worker_pools.serving import After, Serving
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.slot_budget import SlotBudget

log = structlog.get_logger(__name__)
_LEAST_WAIT_S = 0.001
_LOWER = tuple(priority for priority in PRIORITIES if priority != "interactive")


class Slots:
    """`work` has every task that is tried or settled; where those are too many, nothing more is started.

    `reserved` of the slots start interactive work only. One slot stays open to all, however few there are:
    low priority waits longer, never for ever.
    """

    def __init__(
        self,
        budget: SlotBudget,
        gate: Gate,
        backlog: Backlog,
        serving: Serving,
        endings: Endings,
        clock: Clock,
        knobs: WorkerKnobs,
        evictions: Evictions,
        reserved: int = 0,
    ) -> None:
        self._budget = budget
        self._gate = gate
        self._most_work = budget.most + knobs.unsettled
        self._backlog = backlog
        self._serving = serving
        self._endings = endings
        self._evictions = evictions
        self._reserved = reserved
        self._clock = clock
        self._tick_s = knobs.tick_s
        self._lower = 0  # how many slots run other than interactive work
        self._crowded = False
        self._timer: asyncio.TimerHandle | None = None
        self.work: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        self.joinable: Callable[[], bool] = lambda: False
        self._guest: Held | None = None  # runs without a slot, to join a call
        self._wanted: asyncio.Future[None] | None = None  # done when the guest has one after all
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
        self._seat_guest()
        if not self._gate.serves:
            return
        now_s = self._clock.now_s()
        for held in self._backlog.expired(now_s):
            self.spawn(self._endings.past_deadline(held))
        while self._gate.is_open and self._fits() and len(self.work) < self._most_work:
            started = self._backlog.pop(now_s, self._barred() if self._reserved else ())
            if started is None:
                break
            self._start(started)
        self._crowded = len(self.work) >= self._most_work
        self._arm(now_s, self._make_room(now_s))

    def _barred(self) -> tuple[str, ...]:
        """Priorities for whom no slot is left, though some are free."""
        limit = self._budget.limit
        reserved = min(self._reserved, limit - 1)
        return _LOWER if reserved > 0 and self._lower >= limit - reserved else ()

    def _start(self, held: Held) -> None:
        held.phase, held.attempt = Phase.TRYING, None
        if self.free > 0:
            self._take(held)
        else:
            held.rides, self._guest = True, held
        self.spawn(self._serve(held))

    def _free_again(self, held: Held) -> None:
        if self._guest is held:
            self._guest = self._wanted = None
        if not held.rides:
            self._give_back(held)
        held.rides = False
        self._backlog.ended(held)

    def _fits(self) -> bool:
        """A free slot, or a call that is open to others, for one task at a time that may join it."""
        return self.in_flight < self._budget.limit or (self._guest is None and self.joinable())

    # worker_pools/embed_batch.Seats

    def ride(self, held: Held) -> None:
        """A try that shares another's call needs no slot of its own."""
        if self._guest is held:
            self._guest = None
        elif not held.rides:
            held.rides = True
            self._give_back(held)
        self.fill()

    def sit(self, held: Held) -> None:
        """It takes over the slot of a try that leaves their call, which is given back in this very turn."""
        held.rides = False
        self._take(held)

    async def seated(self, held: Held) -> None:
        """Returns when the try has a slot of its own: at once, but for one that found nothing to join."""
        if self._guest is held:
            wanted = self._wanted = asyncio.get_running_loop().create_future()
            self._seat_guest()
            await wanted

    def _seat_guest(self) -> None:
        held, wanted = self._guest, self._wanted
        if held is None or wanted is None or self.free <= 0:
            return
        self._guest = self._wanted = None
        self.sit(held)
        if not wanted.done():
            wanted.set_result(None)

    def _take(self, held: Held) -> None:
        self.in_flight += 1
        self._lower += held.priority != "interactive"
        self._evictions.started(held)

    def _give_back(self, held: Held) -> None:
        self.in_flight -= 1
        self._lower -= held.priority != "interactive"
        self._evictions.ended(held)

    def _make_room(self, now_s: float) -> float | None:
        """When to look again whether batch work must give a slot up."""
        if not self._evictions.possible or not self._gate.is_open or self._crowded:
            return None
        return self._evictions.look(now_s, self._budget.limit - self.in_flight)

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
            self._free_again(held)
            self.fill()
        if settle is not None:
            await self._settled(held, settle)

    async def _settled(self, held: Held, settle: After) -> None:
        """A task that could be neither tried nor ended would hold its offset, and its partition, for ever."""
        try:
            await settle
            if held.phase is Phase.QUEUED:
                self.fill()  # it waits again, and a slot may be free
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

    def _arm(self, now_s: float, look_s: float | None) -> None:
        """Wakes for the next retry that becomes due, for work that waits too long, and for a deadline that
        passes before the next tick: its caller hears so at once."""
        self._disarm()
        starts = self.free > 0 and self._gate.is_open and not self._crowded
        due_s = self._backlog.next_due() if starts else None
        deadline_s = self._backlog.next_deadline(now_s + self._tick_s)
        wakes = [at_s for at_s in (due_s, deadline_s, look_s) if at_s is not None]
        if wakes:
            wait_s = max(_LEAST_WAIT_S, min(wakes) - now_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.fill)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
