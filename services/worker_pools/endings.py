"""What follows the end of a try, and how a task leaves this worker: another try, a parked row, or its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import orjson
import structlog

from schemas.failures import FAILURE_FACTS, FailureKind
from schemas.messages import AttemptFailed, Envelope, Failure, TaskFailed, TaskKind, TaskSucceeded
from schemas.payload import INLINE_LIMIT_BYTES, Claim, Payload
from services.core.reroute import Move
from services.core.retry import (
    FailedTry,
    GiveUp,
    GiveUpReason,
    Local,
    Next,
    Parked,
    RetryPolicy,
    after_failure,
)
from services.ports import BlobStore, Clock, RandomUnit
from services.worker_pools.claimed_body import claim_body
from services.worker_pools.desk import Desk
from services.worker_pools.held import Held, Phase
from services.worker_pools.reports import Reports
from services.worker_pools.tries import TryEnd

T = TypeVar("T")
Send = Callable[[Held, Move], Awaitable[None]]
NextPlace = Literal["local", "parked", "moved", "closed"]

log = structlog.get_logger(__name__)
_BLOB_AGAIN_S = 0.5
_OURS = Failure(kind=FailureKind.INTERNAL, message="the worker failed")


class Endings:
    """Everything here waits for acknowledgements; a task's slot is free before it begins.

    `elsewhere`: the lane where a task that failed is tried next, and what writes it there, where that is not
    to be here.
    """

    def __init__(
        self,
        desk: Desk,
        reports: Reports,
        blobs: BlobStore,
        clock: Clock,
        uniform: RandomUnit,
        policy: RetryPolicy,
    ) -> None:
        self._desk = desk
        self._reports = reports
        self._blobs = blobs
        self._clock = clock
        self._uniform = uniform
        self._policy = policy
        self.elsewhere: Callable[[Held], tuple[Move, Send] | None] = lambda _: None

    async def settle(self, held: Held, kind: TaskKind, keep_answer: bool, end: TryEnd) -> None:
        """Writes what the end of a try means; then the task is let go of, or waits for its next try."""
        failure = end.failure
        if failure is None:
            await self._succeeded(held, kind, keep_answer, end)
        elif end.verdict is not None and end.verdict.cause == "cancel":
            await self._closed(held, end, end.verdict.reason, failure)
        elif end.verdict is not None and end.verdict.cause == "superseded":
            await self._superseded(held, end, failure)
        elif end.verdict is not None and end.verdict.cause == "evict" and not end.streamed:
            await self._evicted(held, end, failure)
        elif end.verdict is not None and end.verdict.cause == "drain" and not end.streamed:
            held.headers = self._spent(held, end, charged=False)
            await self._park(held, end, failure, self._reports.now_ms(), charged=False)
        else:
            await self._failed(held, kind, end, failure)

    async def _succeeded(self, held: Held, kind: TaskKind, keep_answer: bool, end: TryEnd) -> None:
        message = TaskSucceeded(
            task_id=held.task_id,
            tenant=held.tenant,
            kind=kind,
            run=end.run,
            ended_ms=end.ended_ms,
            usage=end.usage,
            answer=await self._payload(end.answer),
            chunks=end.chunks,
            keep_answer=keep_answer,
            timing=end.timing,
        )
        await self._reports.deliver(self._reports.result(held, message))
        self._desk.let_go(held, ended=True)

    async def _failed(self, held: Held, kind: TaskKind, end: TryEnd, failure: Failure) -> None:
        step = self._next(held, end, failure)
        held.headers = self._spent(held, end, charged=True)
        other = None if isinstance(step, GiveUp) else self.elsewhere(held)
        if other is not None:
            await self._move(held, end, failure, *other)
        elif isinstance(step, Local) and not (held.lent or self._desk.closing):
            due_s = self._clock.now_s() + step.delay_s
            held.headers = held.headers.with_changes(not_before_ms=int(due_s * 1000))
            record = self._attempt_failed(held, end, failure, "local", charged=True)
            self._reports.later(self._reports.deliver(record))
            self._desk.backlog.push(held, self._clock.now_s(), due_s)
        elif isinstance(step, GiveUp):
            await self._give_up(held, kind, end, failure, step.reason)
        else:
            due_s = step.due_s if isinstance(step, Parked) else self._clock.now_s() + step.delay_s
            await self._park(held, end, failure, int(due_s * 1000), charged=True)

    def _next(self, held: Held, end: TryEnd, failure: Failure) -> Next:
        failed = FailedTry(
            facts=FAILURE_FACTS[failure.kind],
            tries=held.headers.tries + 1,
            deadline_s=held.headers.deadline_ms / 1000,
            content_streamed=end.streamed,
            retry_after_s=None if end.elsewhere else failure.retry_after_s,
        )
        return after_failure(failed, self._policy, self._clock.now_s(), self._uniform())

    def _spent(self, held: Held, end: TryEnd, *, charged: bool) -> Any:
        return held.headers.with_changes(
            tries=held.headers.tries + charged, spent_usd=held.headers.spent_usd + end.usage.cost_usd
        )

    async def _park(self, held: Held, end: TryEnd, failure: Failure, due_ms: int, *, charged: bool) -> None:
        held.headers = held.headers.with_changes(not_before_ms=due_ms)
        await self._stored(lambda: claim_body(held, self._blobs))
        record = self._attempt_failed(
            held, end, failure, "parked", charged=charged, due_ms=due_ms, envelope=held.envelope()
        )
        await self._reports.deliver(record)
        self._desk.let_go(held, ended=False)

    async def _move(self, held: Held, end: TryEnd, failure: Failure, move: Move, send: Send) -> None:
        """Its old lane record holds the task until the new one does.

        The try's end is said before: behind the records of the next one it would close a row of theirs.
        """
        held.moving = True
        record = self._attempt_failed(held, end, failure, "moved", charged=True, lane=move.lane)
        await self._reports.deliver(record)
        await send(held, move)
        self._desk.let_go(held, ended=False)

    async def _closed(self, held: Held, end: TryEnd, reason: str, failure: Failure) -> None:
        if reason == "poison":
            await self._reports.deliver(self._reports.dead(held, reason))
        await self._reports.deliver(self._attempt_failed(held, end, failure, "closed", charged=False))
        self._desk.let_go(held, ended=True)

    async def _superseded(self, held: Held, end: TryEnd, failure: Failure) -> None:
        """This attempt alone was cancelled: its task runs elsewhere, or for a lane record that came here."""
        next_: NextPlace = "local" if held.positions else "closed"
        await self._reports.deliver(self._attempt_failed(held, end, failure, next_, charged=False))
        if held.positions:
            held.lent = False
            self._desk.backlog.push(held, self._clock.now_s())
        else:
            self._desk.let_go(held, ended=False)

    async def _evicted(self, held: Held, end: TryEnd, failure: Failure) -> None:
        """It waits here again at no charge, unless its lane record was let go of meanwhile, or was closed."""
        reason = self._desk.stones.cancelled(held.task_id)
        if reason is not None:
            await self._closed(held, end, reason, failure)
            return
        held.headers, held.failed_at = self._spent(held, end, charged=False), None
        if held.lent or self._desk.closing:
            await self._park(held, end, failure, self._reports.now_ms(), charged=False)
            return
        record = self._attempt_failed(held, end, failure, "local", charged=False)
        self._reports.later(self._reports.deliver(record))
        self._desk.backlog.push(held, self._clock.now_s(), evicted=True)

    async def _give_up(
        self, held: Held, kind: TaskKind, end: TryEnd, failure: Failure, reason: GiveUpReason
    ) -> None:
        if reason is GiveUpReason.TRIES:
            await self._reports.deliver(self._reports.dead(held, f"out of tries: {failure.kind}"))
        message = TaskFailed(
            task_id=held.task_id,
            tenant=held.tenant,
            kind=kind,
            run=end.run,
            ended_ms=end.ended_ms,
            usage=end.usage,
            failure=failure,
            tries=held.headers.tries,
            chunks=end.chunks,
            answer=None if end.answer is None else await self._payload(end.answer),
            timing=end.timing,
        )
        await self._reports.deliver(self._reports.result(held, message))
        self._desk.let_go(held, ended=True)

    async def untried(self, held: Held, failure: Failure, *, dead_reason: str | None = None) -> None:
        """The task ends without a try here: its deadline passed, or its record or body cannot be used."""
        held.phase = Phase.SETTLING
        if dead_reason is not None:
            await self._reports.deliver(self._reports.dead(held, dead_reason))
        await self._reports.deliver(self._reports.failed_untried(held, failure))
        self._desk.let_go(held, ended=True)

    async def broken(self, held: Held) -> None:
        """A fault of ours, which another try would meet again."""
        await self.untried(held, _OURS)

    async def prune(self, held: Held, reason: str) -> None:
        """A task that is over by another's word leaves without one of ours; poison goes to the dead first."""
        held.phase = Phase.SETTLING
        if reason == "poison":
            await self._reports.deliver(self._reports.dead(held, reason))
        self._desk.let_go(held, ended=True)

    async def past_deadline(self, held: Held) -> None:
        failure = Failure(kind=FailureKind.DEADLINE, message="the deadline passed before a try could start")
        await self.untried(held, failure)

    def _attempt_failed(
        self,
        held: Held,
        end: TryEnd,
        failure: Failure,
        next_: NextPlace,
        *,
        charged: bool,
        due_ms: int | None = None,
        lane: str | None = None,
        envelope: Envelope | None = None,
    ) -> Any:
        message = AttemptFailed(
            task_id=held.task_id,
            tenant=held.tenant,
            run=end.run,
            ended_ms=end.ended_ms,
            usage=end.usage,
            failure=failure,
            next=next_,
            charged=charged,
            due_ms=due_ms,
            lane=lane,
            envelope=envelope,
        )
        return self._reports.result(held, message)

    async def _payload(self, answer: dict[str, Any] | None) -> Payload:
        data = orjson.dumps(answer)
        if len(data) <= INLINE_LIMIT_BYTES:
            return Payload.model_construct(inline=orjson.Fragment(data))
        key, sha256 = await self._stored(lambda: self._blobs.put(data))
        return Payload.model_construct(claim=Claim(key=key, sha256=sha256, size=len(data)))

    async def _stored(self, store: Callable[[], Awaitable[T]]) -> T:
        """What was done is paid for: it waits until the store takes it."""
        while True:
            try:
                return await store()
            except OSError as fault:
                log.warning("blob not stored, tried again", fault=str(fault))
                await self._clock.sleep(_BLOB_AGAIN_S)
