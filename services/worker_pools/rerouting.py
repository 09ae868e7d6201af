"""What waits here and had better be elsewhere: looked at when it arrives, and on every tick.

Law: the task is out of the queue before its new lane record is written, and let go of after that one is
acknowledged. A crash in between doubles it, a cancel meets it on the new lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import structlog

from services.core.fleet import Pool
from services.core.reroute import Cause, Fail, FleetSnapshot, Here, Move, reroute
from services.ports import Clock, RecordTooLargeError
from services.worker_pools.crew import Crew
from services.worker_pools.endings import Send
from services.worker_pools.held import Held, Phase
from services.worker_pools.moving import Moving
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)


class Rerouting:
    """Applies `reroute` to the queue of one worker."""

    def __init__(
        self, worker: str, pool: Pool, crew: Crew, moving: Moving, clock: Clock, knobs: WorkerKnobs
    ) -> None:
        self._worker, self._pool, self._moving = worker, pool, moving
        self._view, self._progress = crew.presence.view, crew.presence.progress
        self._desk, self._endings, self._slots = crew.desk, crew.endings, crew.slots
        self._gate, self._budget, self._backends = crew.gate, crew.budget, crew.backends
        self._clock, self._knobs, self._law = clock, knobs, knobs.reroute
        self._ahead: Counter[tuple[str, str]] | None = None
        self._begin = 0
        self._looks_left = knobs.move_batch  # at late arrivals, until the next tick
        crew.endings.elsewhere = self.after_failure

    def arrived(self, held: Held) -> None:
        """A task came: where it cannot start in time, somebody else does it, or its caller hears so now.

        The look costs nothing while the queue is short.
        """
        wait_s, now_s = self._wait_s(), self._clock.now_s()
        if now_s + wait_s < held.headers.deadline_ms / 1000 or not self._gate.is_open:
            return
        if held.phase is Phase.QUEUED and self._view.caught_up.is_set() and self._looks_left > 0:
            self._looks_left -= 1
            self._apply(held, self._here("late", wait_s), self._moving.snapshot())

    def tick(self) -> None:
        """A batch of what waits, newest first."""
        cause = self._cause()
        queued = len(self._desk.backlog)
        self._looks_left = self._knobs.move_batch
        self._ahead = None
        if cause is None or not queued:
            return
        fleet = self._moving.snapshot()
        room = self._room(cause, queued, fleet)
        if room <= 0:
            return
        wait_s = self._until_start_s(cause)
        for held in self._next(room):
            if self._apply(held, self._here(cause, wait_s), fleet):
                fleet = self._moving.snapshot()
                if cause == "tail":
                    wait_s -= self._progress.service_s / max(1, self._budget.limit)

    def after_failure(self, held: Held) -> tuple[Move, Send] | None:
        """Where a task that just failed here is tried next, if none of our backends may be called, be it for
        a moment: the next try here may well fail as this one did."""
        if self._cause() != "no_backend" or not held.positions or held.lent or self._desk.closing:
            return None
        facts = self._moving.facts(held)
        if facts is None:
            return None
        here = self._here("no_backend", float("inf"))
        step = reroute(facts, here, self._moving.snapshot(), self._law, self._clock.now_s())
        if not isinstance(step, Move):
            return None
        self._moving.chosen(step)
        return step, self._moving.send

    def _cause(self) -> Cause | None:
        """What there is to look for now. What waits in a paused pool stays, by order."""
        if not (self._gate.serves and self._view.caught_up.is_set()) or self._desk.closing:
            return None
        mode = self._view.table.mode(self._pool.name)
        if mode != "running":
            return "drained" if mode == "draining" else None
        if "no_backend" in self._gate.reasons:
            return "no_backend"
        return "tail" if self._gate.is_open and self._slots.free == 0 else None

    def _room(self, cause: Cause, queued: int, fleet: FleetSnapshot) -> int:
        """How many tasks to look at: none of them where there is nobody to take one."""
        others = [station for station in fleet.takers() if station.worker != self._worker]
        if not others:
            return 0
        if cause != "tail":
            return self._knobs.move_batch
        free = sum(station.free for station in others)
        return min(self._knobs.move_batch, free, queued - max(1, self._budget.limit))

    def _next(self, count: int) -> list[Held]:
        """So many of what waits, other ones on every tick: the newest may be just those that nobody takes."""
        waiting = list(self._waiting())
        begin = self._begin if self._begin < len(waiting) else 0
        self._begin = begin + count
        return waiting[begin : begin + count]

    def _waiting(self) -> Iterator[Held]:
        """What waits here and may leave, the newest first."""
        for held in reversed(tuple(self._desk.all())):
            if held.phase is Phase.QUEUED and held.positions and not held.lent:
                yield held

    def _here(self, cause: Cause, wait_s: float) -> Here:
        return Here(self._pool.name, self._worker, cause, wait_s, self._progress.service_s)

    def _apply(self, held: Held, here: Here, fleet: FleetSnapshot) -> bool:
        """Whether the task left the queue."""
        facts = self._moving.facts(held)
        if facts is None:
            return False  # its start finds out, and says why
        if here.cause == "late":
            here = self._certain(held, here)
        step = reroute(facts, here, fleet, self._law, self._clock.now_s())
        if not isinstance(step, Move | Fail) or not self._desk.backlog.remove(held):
            return False
        held.phase = Phase.SETTLING
        if isinstance(step, Fail):
            self._slots.spawn(self._endings.untried(held, step.failure))
        else:
            held.moving = True
            self._moving.chosen(step)
            self._slots.spawn(self._move(held, step))
        return True

    async def _move(self, held: Held, move: Move) -> None:
        try:
            await self._moving.send(held, move)
        except RecordTooLargeError as fault:
            log.error("a task cannot be moved", task_id=held.task_id, fault=str(fault))
            held.moving = False
            self._desk.backlog.push(held, self._clock.now_s())
        else:
            self._desk.let_go(held, ended=False)

    # how long it takes here

    def _until_start_s(self, cause: Cause) -> float:
        """Of the last task that waits; of any where none starts now: a short hold is no reason to leave."""
        if cause == "drained":
            return float("inf")
        return self._backends.callable_in_s() if cause == "no_backend" else self._wait_s()

    def _wait_s(self) -> float:
        """Of a task behind all others, were it the last to start."""
        waiting = len(self._desk.backlog)
        return waiting * self._progress.service_s / max(1, self._budget.limit)

    def _counted(self, but: Held) -> Counter[tuple[str, str]]:
        """What waits of each tenant and priority when somebody first asks after a tick: in any order a newer
        one has most of it before it."""
        if self._ahead is None:
            few = len(self._desk.backlog) <= self._budget.limit
            waiting = () if few else self._waiting()
            self._ahead = Counter((one.headers.tenant, one.priority) for one in waiting if one is not but)
        return self._ahead

    def _certain(self, held: Held, here: Here) -> Here:
        """With the least that it waits: behind what its own tenant has there, if times were seen."""
        ahead = self._counted(held)[held.headers.tenant, held.priority]
        least_s = ahead * self._progress.service_s / max(1, self._budget.limit)
        measured = self._progress.service_s != self._pool.prior_seconds
        return replace(here, least_s=least_s) if measured else here
