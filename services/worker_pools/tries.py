"""One try at a task: the call, its guards, its chunks, and how it ended, as a value."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

import structlog

from schemas.failures import FAILURE_FACTS, FailureKind
from schemas.messages import Failure, RunTask, TaskKind, Timing, Try, Usage
from services.core import answer_verdict, usage
from services.core.assembly import MalformedChunkError
from services.core.fleet import Pool
from services.core.stream_guards import StreamGuards
from services.ports import BackendFault, Clock, ModelCall, ModelClient
from services.worker_pools.answer_stream import AnswerStream
from services.worker_pools.backend_record import Lease
from services.worker_pools.backends import Backends, Heard
from services.worker_pools.chunk_sender import ChunkPump, ChunkSender
from services.worker_pools.embed_batch import EmbedBatches
from services.worker_pools.held import Held
from services.worker_pools.progress import Progress
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.starts import Ready
from services.worker_pools.try_watch import TryWatch, Verdict

log = structlog.get_logger(__name__)

_GUARD_WORDS: Mapping[FailureKind, str] = {
    FailureKind.DEADLINE: "the deadline passed before the answer was whole",
    FailureKind.TOTAL_TIMEOUT: "the answer took longer than the pool allows",
    FailureKind.FIRST_TOKEN_TIMEOUT: "the backend did not begin to answer in time",
    FailureKind.IDLE_TIMEOUT: "the backend fell silent",
    FailureKind.TOO_SLOW: "the backend answered below the minimum rate",
    FailureKind.CANCELLED: "the task was cancelled",
    FailureKind.EVICTED: "the task gave its slot to more urgent work",
    FailureKind.INTERNAL: "the worker was stopped",
}


@dataclass(frozen=True, slots=True)
class TryEnd:
    """How a try ended. `failure` None: `answer` is whole. `streamed`: a client has content of it."""

    run: Try
    ended_ms: int
    usage: Usage
    timing: Timing
    answer: dict[str, Any] | None
    failure: Failure | None = None
    verdict: Verdict | None = None
    chunks: int = 0
    streamed: bool = False
    elsewhere: bool = False  # another backend can take the task now: what this one asked for binds only it


class Tries:
    """Runs tries of one pool."""

    def __init__(
        self,
        pool: Pool,
        client: ModelClient,
        backends: Backends,
        pump: ChunkPump,
        clock: Clock,
        knobs: WorkerKnobs,
        progress: Progress,
    ) -> None:
        self._pool = pool
        self._progress = progress
        self._client = client
        self.batches = EmbedBatches(pool, client)
        self._backends = backends
        self._pump = pump
        self._clock = clock
        self._knobs = knobs

    async def seated(self, held: Held, task: RunTask) -> None:
        """Returns when the task may be tried: one that began without a slot to join a call, and is of a kind
        that cannot, waits for one."""
        if held.rides and task.kind != "embedding":
            await self.batches.seated(held)

    async def run(
        self,
        held: Held,
        ready: Ready,
        run: Try,
        watch: TryWatch,
        announce: Callable[[], None],
        headers: Mapping[str, str],
        lease: Lease,
    ) -> TryEnd:
        """Never raises but CancelledError. `announce` says on `results` that the try runs. Ends the lease,
        unless it raises."""
        pool, loop = self._pool, asyncio.get_running_loop()
        task, body, sent = ready.task, ready.body, ready.sent
        streaming, started_s = sent.streaming, loop.time()
        deadline_s = started_s + held.headers.deadline_ms / 1000 - self._clock.now_s()
        guards = StreamGuards(pool.timeouts, started_s, deadline_s, streaming=streaming)
        sender = self._sender(held, task, run)
        stream = AnswerStream(task, body, pool.model, run.started_ms // 1000, sender)
        attempt = _Attempt(stream, guards, watch, announce, self._moved(lease), announced=sender is None)
        base_url, told = lease.base_url, {**headers, **sent.headers}
        call = ModelCall(base_url, sent.path, sent.body, run.attempt, streaming, pool.timeouts, told)
        watch.guard(guards.due)
        timer = loop.call_later(self._knobs.announce_s, announce)
        self._backends.began(lease)
        began_s = self._progress.began(held.task_id)
        kind: FailureKind | None = FailureKind.INTERNAL
        try:
            failure = await attempt.follow(self._client_for(held, ready), call, task.kind)
            kind = None if failure is None else failure.kind
        finally:
            self._progress.ended(held.task_id, kind, began_s)
            watch.finish()
            timer.cancel()
        end = self._end(held, run, attempt, failure, len(sent.body))
        self._backends.ended(lease, failure, _heard(attempt, lease, end))
        held.failed_at = base_url if self._backends.blamed(failure) else None
        if failure is not None and self._backends.another_serves(base_url):
            end = replace(end, elsewhere=True)
        return end

    def _client_for(self, held: Held, ready: Ready) -> ModelClient:
        """Embeddings share calls."""
        return self.batches.rider(held, ready.body) if ready.task.kind == "embedding" else self._client

    def _moved(self, lease: Lease) -> Callable[[int, float], None]:
        progress = self._progress

        def moved(pieces: int, now_s: float) -> None:
            lease.saw(pieces, now_s)
            if lease.probes:
                self._backends.proved(lease)
            progress.moved()

        return moved

    def _sender(self, held: Held, task: RunTask, run: Try) -> ChunkSender | None:
        partition = held.headers.reply_partition
        if not task.stream or partition is None:
            return None
        return ChunkSender(self._pump, self._knobs, task.task_id, run, partition)

    def _end(
        self, held: Held, run: Try, attempt: _Attempt, failure: Failure | None, prompt_bytes: int
    ) -> TryEnd:
        stream, guards = attempt.stream, attempt.guards
        ended_s = asyncio.get_running_loop().time()
        counted = attempt.usage(prompt_bytes)
        if failure is not None:
            rename = answer_verdict.after_content if stream.has_content else answer_verdict.before_content
            failure = rename(failure)
        billed = failure is None or FAILURE_FACTS[failure.kind].billed
        if not billed and not attempt.heard:
            counted = Usage()
        elif billed:
            cost_usd = self._pool.price.cost_usd(counted, ended_s - guards.started_s)
            counted = counted.model_copy(update={"cost_usd": cost_usd}) if cost_usd else counted
        stream.end(counted, whole=failure is None)
        return TryEnd(
            run=run,
            ended_ms=int(self._clock.now_s() * 1000),
            usage=counted,
            timing=_timing(held, run, guards),
            answer=attempt.answer(counted, self._pool.model)
            if failure is None or stream.has_content
            else None,
            failure=failure,
            verdict=attempt.watch.verdict,
            chunks=stream.chunks,
            streamed=stream.streamed,
        )


class _Attempt:
    """One try while it runs."""

    def __init__(
        self,
        stream: AnswerStream,
        guards: StreamGuards,
        watch: TryWatch,
        announce: Callable[[], None],
        moved: Callable[[int, float], None],
        *,
        announced: bool,
    ) -> None:
        self._moved = moved
        self.stream = stream
        self.guards = guards
        self.watch = watch
        self._announce = announce
        self._announced = announced  # before the first streamed content; nothing else needs it here
        self._kind: TaskKind = "chat"
        self._whole: dict[str, Any] | None = None  # the answer of a task whose kind has no chunks
        self.heard = False

    async def follow(self, client: ModelClient, call: ModelCall, of_kind: TaskKind) -> Failure | None:
        self._kind = of_kind
        chunks = of_kind in answer_verdict.IN_CHUNKS
        events = cast("AsyncGenerator[list[dict[str, Any]], None]", client.events(call))
        try:
            async with aclosing(events):
                async for batch in events:
                    self.heard = True
                    if chunks:
                        self._take(batch)
                    else:
                        self._whole = batch[0]
            return self.stream.verdict() if chunks else answer_verdict.of_whole(of_kind, self._whole)
        except BackendFault as fault:
            return Failure(
                kind=fault.kind,
                message=fault.message,
                status=fault.status,
                code=fault.code,
                param=fault.param,
                retry_after_s=fault.retry_after_s,
            )
        except MalformedChunkError:
            return Failure(kind=FailureKind.BAD_ANSWER, message="the backend's answer has a wrong shape")
        except asyncio.CancelledError:
            kind = self.watch.caught().kind
            return Failure(kind=kind, message=_GUARD_WORDS[kind])
        except Exception:
            log.exception("a try failed inside", attempt=call.attempt)
            return Failure(kind=FailureKind.INTERNAL, message="the worker failed")

    def _take(self, batch: list[dict[str, Any]]) -> None:
        first = self.guards.first_s is None
        pieces = self.stream.take(batch)
        if not pieces:
            return
        now_s = asyncio.get_running_loop().time()
        self.guards.saw(pieces, now_s)
        self._moved(pieces, now_s)
        if first:
            self.watch.content = True
            self.watch.rearm()
            if not self._announced:
                self._announced = True
                self._announce()

    def usage(self, prompt_bytes: int) -> Usage:
        if self._kind == "tool":
            return Usage()  # a tool has no tokens: its price is by the request and the second
        if self._whole is None:
            return self.stream.usage(prompt_bytes)
        told = self._whole.get("usage")
        return usage.counted(
            told if isinstance(told, dict) else None, prompt_bytes=prompt_bytes, output_tokens=int
        )

    def answer(self, counted: Usage, model: str) -> dict[str, Any]:
        if self._whole is None:
            return self.stream.answer(counted)
        return self._whole if self._kind == "tool" else self._whole | {"model": model}


def _heard(attempt: _Attempt, lease: Lease, end: TryEnd) -> Heard:
    guards = attempt.guards
    first_s = guards.first_s
    return Heard(
        anything=attempt.heard,
        first_s=None if first_s is None else first_s - guards.started_s,
        decode_s=0.0 if first_s is None else guards.last_s - first_s,
        pieces=lease.produced,
        tokens=end.usage.output_tokens,
    )


def words_for(kind: FailureKind) -> str:
    """What the caller hears of a try that was ended from outside."""
    return _GUARD_WORDS[kind]


def _timing(held: Held, run: Try, guards: StreamGuards) -> Timing:
    first_s = guards.first_s
    return Timing(
        queue_ms=float(max(0, run.started_ms - held.written_ms)),
        first_token_ms=0.0 if first_s is None else (first_s - guards.started_s) * 1000,
        decode_ms=0.0 if first_s is None else (guards.last_s - first_s) * 1000,
    )
