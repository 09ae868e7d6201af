"""A task in its slot: from the start of its preparation to the end of its try, whoever ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from opentelemetry import trace

from schemas.failures import FailureKind
from schemas.messages import Failure, RunTask, Timing, Try, Usage
from services.ports import Clock
from services.worker_pools.backend_record import Lease
from services.worker_pools.backends import Backends, NoBackend
from services.worker_pools.desk import Desk
from services.worker_pools.endings import Endings
from services.worker_pools.held import Held
from services.worker_pools.reports import Reports
from services.worker_pools.starts import Ready, Refused, Starts
from services.worker_pools.tries import Tries, TryEnd, words_for
from services.worker_pools.try_spans import TrySpans
from services.worker_pools.try_watch import TryWatch, Verdict

log = structlog.get_logger(__name__)

After = Coroutine[Any, Any, None]
_NEVER_ANSWERED = frozenset({FailureKind.UNREACHABLE, FailureKind.RESET, FailureKind.FIRST_TOKEN_TIMEOUT})


class Serving:
    """`answered` once a backend said anything to a try."""

    def __init__(
        self,
        desk: Desk,
        reports: Reports,
        endings: Endings,
        starts: Starts,
        tries: Tries,
        backends: Backends,
        clock: Clock,
        count: Callable[[TryEnd], None],
    ) -> None:
        self._desk = desk
        self._reports = reports
        self._endings = endings
        self._starts = starts
        self._tries = tries
        self._backends = backends
        self._clock = clock
        self._count = count
        self._spans = TrySpans(trace.get_tracer_provider())
        self.answered = False

    async def tried(self, held: Held) -> After | None:
        """Runs the try and returns what is to be done after it, for which no slot is needed."""
        reason = self._desk.stones.cancelled(held.task_id)
        if reason is not None:
            return self._endings.prune(held, reason)
        left_s = held.headers.deadline_ms / 1000 - self._clock.now_s()
        if left_s <= 0:
            return self._endings.past_deadline(held)
        deadline_s = asyncio.get_running_loop().time() + left_s
        watch = held.watch = TryWatch(lambda: (deadline_s, FailureKind.DEADLINE))
        try:
            ready = await self._starts.prepare(held)
            if isinstance(ready, Ready):
                await self._tries.seated(held, ready.task)
        except asyncio.CancelledError:
            return self._stopped_unstarted(held, watch.caught())
        except Exception:
            watch.finish()
            log.exception("a task could not be prepared", task_id=held.task_id)
            return self._endings.broken(held)
        if isinstance(ready, Refused):
            watch.finish()
            return self._endings.untried(held, ready.failure, dead_reason=ready.dead)
        if not held.positions and not held.lent:
            watch.finish()
            self._desk.drop(held)  # its partition went to another worker meanwhile, which will run it
            return None
        lease = self._backends.take(ready.task, ready.body, held.failed_at)
        if isinstance(lease, NoBackend):
            watch.finish()
            return self._put_back(held)
        try:
            return await self._attempted(held, ready, watch, lease)
        finally:
            self._backends.dropped(lease)

    async def _put_back(self, held: Held) -> None:
        """The last backend went while the task was prepared: it waits, and no try of it is spent."""
        if self._desk.closing:
            self._desk.drop(held)
        else:
            self._desk.backlog.push(held, self._clock.now_s(), evicted=True)  # before what came after it

    async def _attempted(self, held: Held, ready: Ready, watch: TryWatch, lease: Lease) -> After:
        task = ready.task
        held.shares_call = task.kind == "embedding"
        run = self._starts.mint(held)
        try:
            announced = await self._starts.announce_first(held, run)
        except asyncio.CancelledError:
            end = self._stopped_announced(run, watch.caught())
            return self._endings.settle(held, task.kind, task.keep_answer, end)

        def announce() -> None:
            nonlocal announced
            if not announced:
                announced = True
                self._reports.later(self._reports.announced(held, run, redelivered=False, runs=True))

        began_s = asyncio.get_running_loop().time()
        with self._spans.begun(held, task, run) as span:
            end = await self._tries.run(held, ready, run, watch, announce, span.headers, lease)
            span.tell(end.failure, end.usage)
        self._note(held, task, end, asyncio.get_running_loop().time() - began_s)
        return self._endings.settle(held, task.kind, task.keep_answer, end)

    def _stopped_unstarted(self, held: Held, verdict: Verdict) -> After | None:
        """No attempt was minted: nothing is owed to the ledger."""
        if verdict.cause == "cancel":
            return self._endings.prune(held, verdict.reason)
        if verdict.cause == "guard":
            return self._endings.past_deadline(held)
        self._desk.drop(held)
        return None

    def _stopped_announced(self, run: Try, verdict: Verdict) -> TryEnd:
        failure = Failure(kind=verdict.kind, message=words_for(verdict.kind))
        return TryEnd(run, self._reports.now_ms(), Usage(), Timing(), None, failure, verdict)

    def _note(self, held: Held, task: RunTask, end: TryEnd, ran_s: float) -> None:
        self._count(end)
        failure = end.failure
        kind = None if failure is None else failure.kind
        self._desk.backlog.tried(held, end.usage, kind, ran_s)
        if failure is None or failure.kind not in _NEVER_ANSWERED:
            self.answered = True
        log.info(
            "try ended",
            request_id=held.headers.request_id,
            task_id=held.task_id,
            attempt=end.run.attempt,
            kind=task.kind,
            failure=None if failure is None else failure.kind.value,
            status=None if failure is None else failure.status,
            input_tokens=end.usage.input_tokens,
            output_tokens=end.usage.output_tokens,
            queue_ms=round(end.timing.queue_ms),
            first_token_ms=round(end.timing.first_token_ms),
            decode_ms=round(end.timing.decode_ms),
            tries=held.headers.tries + 1,
        )
