"""Room for interactive work: running batch tasks are ended by the rule in core, their slots kept for it.

Law: a slot that an eviction frees is for the task it was made for, or, where that started meanwhile, for the
next interactive one.
"""

from __future__ import annotations

import structlog

from schemas.failures import FailureKind
from services.core.eviction import AskAgain, EvictionLaw, Running, decide
from services.worker_pools.backlog import Backlog
from services.worker_pools.held import Held
from services.worker_pools.try_watch import Verdict

log = structlog.get_logger(__name__)


class Evictions:
    """`law` None: nothing is evicted. `count`: how many tries were, by this worker."""

    def __init__(self, backlog: Backlog, law: EvictionLaw | None) -> None:
        self._backlog = backlog
        self._law = law
        self._running: dict[str, Held] = {}
        self._batch = 0
        self._ending: set[str] = set()  # evicted, and their slots not free yet
        self._promised: set[str] = set()  # for whom they were; they start before all others
        self.count = 0

    @property
    def possible(self) -> bool:
        """Whether batch work runs that may be evicted at all."""
        return self._batch > 0 and self._law is not None

    def started(self, held: Held) -> None:
        self._running[held.task_id] = held
        self._batch += held.priority == "batch"
        self._promised.discard(held.task_id)

    def ended(self, held: Held) -> None:
        del self._running[held.task_id]
        self._batch -= held.priority == "batch"
        self._ending.discard(held.task_id)

    def look(self, now_s: float, free: int) -> float | None:
        """Evicts what has to be, and says when to look again. `free`: slots for work now, less than 0 where
        more run than may."""
        law = self._law
        if law is None or not self.possible:
            return None
        self._promised = {task_id for task_id in self._promised if self._backlog.is_first(task_id)}
        while candidates := self._backlog.next_interactive():
            if len(self._ending) > len(self._promised):
                self._promise(candidates[0].task_id)
                continue
            if free < 0:
                return None  # no slot would come of it
            waiting = self._backlog.eligible("interactive") + len(self._promised)
            running = [self._seen(held, now_s) for held in self._running.values()]
            step = decide(candidates, waiting, running, free + len(self._ending), law, now_s)
            if isinstance(step, AskAgain):
                return step.at_s
            if step is None or not self._evict(self._running[step.victim]):
                return None
            self._promise(step.task_id)
        return None

    def _evict(self, victim: Held) -> bool:
        """False where the try ended by itself just now: its own end stands, and its slot is free at once."""
        if victim.watch is None or not victim.watch.stop(Verdict("evict", FailureKind.EVICTED)):
            return False
        victim.evictions += 1
        self.count += 1
        self._ending.add(victim.task_id)
        log.info("evicted", task_id=victim.task_id, attempt=victim.attempt, evictions=victim.evictions)
        return True

    def _promise(self, task_id: str) -> None:
        if self._backlog.put_first(task_id):
            self._promised.add(task_id)

    def _seen(self, held: Held, now_s: float) -> Running:
        watch = held.watch
        times, ran_s = self._backlog.times, now_s - held.started_s
        return Running(
            task_id=held.task_id,
            priority=held.priority,
            started_s=held.started_s,
            rest_s=times.rest_s(held.priority, held.headers.tokens, ran_s),
            evictions=held.evictions,
            content=watch is not None and watch.content and held.headers.reply_partition is not None,
            lent=held.lent,
            fixed=held.attempt is None or held.shares_call or watch is None or watch.over,
        )
