"""Answering as Server-Sent Events: the response starts with the first content, or with the first ping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from schemas.messages import AttemptFailed, AttemptStarted, Message, ReplyChunk, TaskSucceeded, Usage
from services.core.stream_binding import NOTHING, Broken, Completed, Event, Step, StreamBinding
from services.ingress.errors import ApiError, deadline_passed, failed, slow_reader
from services.ingress.floor import Floor
from services.ingress.http_protocol import ABORT_KEY
from services.ingress.settings import IngressKnobs
from services.ingress.sse_form import DONE, SSE_HEADERS, sse
from services.ingress.waiting import Terminal, Waiting
from services.ingress.whole import ClientGone, payload_bytes
from services.ports import BlobStore

PING = b": ping\n\n"
_STUCK_S = 2.0  # past the end of the wait, a write that still blocks is cut off
_LAST_WORD_S = 5.0  # for a reader that was cut off to make room for the reason


@dataclass(frozen=True, slots=True)
class Left:
    """The stream ends without the log's word."""

    why: Literal["hung_up", "abandoned", "deadline"]


class Follower:
    """Turns what the listener hears into steps of the stream."""

    def __init__(self, waiting: Waiting, blobs: BlobStore, knobs: IngressKnobs) -> None:
        self._waiting = waiting
        self._blobs = blobs
        self._knobs = knobs
        self._loop = asyncio.get_running_loop()
        self._gives_up_at = waiting.call.gives_up_at()
        self._repair_at: float | None = None
        self._outcome: Terminal | None = None
        self._workers: dict[str, str] = {}  # by attempt
        self.binding = StreamBinding(include_usage=waiting.call.admitted.include_usage)

    @property
    def task_failed(self) -> bool:
        """The log has decided, and not for a success; a stream may break while its task succeeds."""
        return self._outcome is not None and not isinstance(self._outcome, TaskSucceeded)

    @property
    def gives_up_at(self) -> float:
        """The event loop's time."""
        return self._gives_up_at

    async def advance(self, until: float) -> Step | Left:
        """The next thing that happens; an empty step when `until` has passed."""
        listener = self._waiting.listener
        while True:
            step = self._hear()
            self._follow_worker()
            if listener.lost_worker and step.end is None:
                listener.lost_worker = False
                self._ask(self.binding.worker_died())
            if step.events or step.end is not None:
                return step
            now = self._loop.time()
            left = self._left(now)
            if left is not None:
                return left
            if self._repair_at is not None and now >= self._repair_at:
                return await self._repair()
            if now >= until:
                return NOTHING
            await listener.wait(min(until, self._gives_up_at, self._repair_at or until))

    def _left(self, now: float) -> Left | None:
        listener = self._waiting.listener
        if listener.hung_up:
            return Left("hung_up")
        if listener.abandoned:
            return Left("abandoned")
        return Left("deadline") if now >= self._gives_up_at else None

    def _hear(self) -> Step:
        """All that has arrived, as one step."""
        events: list[Event] = []
        for message in self._waiting.listener.take():
            step = self._one(message)
            events += step.events
            self._ask(step)
            if step.missing and self._repair_at is None:
                chunks = self._outcome.chunks if isinstance(self._outcome, TaskSucceeded) else 1
                self._repair_at = self._loop.time() + (self._knobs.repair_s if chunks else 0)
            if step.end is not None:
                return Step(events, step.end)
        return Step(events) if events else NOTHING

    def _one(self, message: Message) -> Step:
        if isinstance(message, ReplyChunk):
            if message.worker is not None:
                self._workers[message.attempt] = message.worker
            return self.binding.chunk(message)
        if isinstance(message, AttemptStarted):
            self._workers[message.run.attempt] = message.run.worker
            return self.binding.started(message.run.attempt)
        if isinstance(message, AttemptFailed):
            return self.binding.attempt_failed(message.run.attempt)
        if isinstance(message, Terminal):
            self._outcome = self._outcome or message
            return self.binding.outcome(message)
        return NOTHING

    def _ask(self, step: Step) -> None:
        """The log decides between what the attempt may have written and our close, and so ends the stream."""
        if step.doubt:
            self._waiting.interrupt()

    def _follow_worker(self) -> None:
        """From the first content on its worker's death ends the stream; before, another try takes over."""
        attempt = self.binding.attempt
        if self._waiting.worker is None and attempt in self._workers:
            self._waiting.follow(self._workers[attempt])

    async def _repair(self) -> Step:
        """From the outcome's own answer: a claimed one is fetched first."""
        answer = getattr(self._outcome, "answer", None)
        whole = orjson.loads(await payload_bytes(answer, self._blobs)) if answer is not None else None
        return self.binding.repair(whole if isinstance(whole, dict) else None)

    def closing_events(self, record: TaskSucceeded) -> list[Event]:
        """The usage chunk, where it was asked for and none came."""
        inline = record.answer.inline
        answer: dict[str, Any] = inline if isinstance(inline, dict) else {"model": record.run.model}
        return self.binding.usage(answer, answer.get("usage") or usage_shape(record.usage))


def usage_shape(usage: Usage) -> dict[str, Any]:
    """Usage as OpenAI's clients know it."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class StreamedAnswer(Response):
    """The response of a stream whose first step is known. Releases what the request holds when it ends."""

    def __init__(
        self,
        waiting: Waiting,
        follower: Follower,
        first: Step,
        knobs: IngressKnobs,
        floor: Floor,
        on_failure: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(headers=SSE_HEADERS | {"x-chimera-pool": waiting.call.pool.name})
        self._waiting = waiting
        self._follower = follower
        self._step: Step | Left = first
        self._knobs = knobs
        self._floor = floor
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout_at(self._follower.gives_up_at + _STUCK_S) as guard:
                self._waiting.listener.on_overflow = lambda: guard.reschedule(self._loop.time())
                await self._stream(send)
        except TimeoutError:
            await self._cut_off(scope, send)
        finally:
            self._waiting.listener.on_overflow = None
            self._waiting.release()

    async def _cut_off(self, scope: Scope, send: Send) -> None:
        """The model stops now, and the client is told why if it makes room for that in time: a blocked write
        left nothing in the socket, so the event stands between whole ones. Else what is buffered goes too."""
        error = slow_reader()
        record = self._waiting.call.record
        self._waiting.leave()
        self._waiting.release()
        record.reason = error.code
        last = {"type": "http.response.body", "body": error.event(), "more_body": False}
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                await send(last)
        except TimeoutError:
            scope[ABORT_KEY]()
            await send(last)  # returns once the connection is gone: nothing is written any more

    async def _stream(self, send: Send) -> None:
        headers = [(n, v) for n, v in self.raw_headers if n != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            step = self._step
            if isinstance(step, Left):
                await self._write(send, await self._parting(step), last=True)
                return
            if step.end is not None:
                await self._write(send, sse(step.events) + await self._ending(step.end), last=True)
                return
            await self._write(send, sse(step.events) or PING)
            try:
                self._step = await self._follower.advance(self._loop.time() + self._knobs.ping_s)
            except ApiError as error:  # the answer behind a repair is gone
                await self._write(send, self._failed(error), last=True)
                return

    async def _write(self, send: Send, body: bytes, *, last: bool = False) -> None:
        if self._follower.binding.delivered:
            self._waiting.call.record.content_begins()
        listener = self._waiting.listener
        listener.writing = True
        await send({"type": "http.response.body", "body": body, "more_body": not last})
        listener.writing = False

    async def _ending(self, end: Completed | Broken) -> bytes:
        if isinstance(end, Completed):
            closing = sse(self._follower.closing_events(end.record))
            self._waiting.call.record.succeeded(end.record)
            self._floor.keep(self._waiting.call, end.record)
            return closing + DONE
        if end.close:
            self._waiting.interrupt()
        if self._follower.task_failed:
            await self._on_failure()
        return self._failed(failed(end.failure))

    async def _parting(self, left: Left) -> bytes:
        if left.why == "hung_up":
            self._waiting.leave()
            return b""
        return self._failed(deadline_passed() if left.why == "deadline" else self._waiting.abandon())

    def _failed(self, error: ApiError) -> bytes:
        """The error as the last event, or the floor where nothing has been said yet and it is allowed."""
        if not self._follower.binding.delivered:
            events = self._floor.events(self._waiting.call, error)
            if events is not None:
                return sse(events) + DONE
        record = self._waiting.call.record
        record.status, record.reason = error.counted, error.code
        return error.event()


async def begin_stream(
    waiting: Waiting,
    blobs: BlobStore,
    knobs: IngressKnobs,
    floor: Floor,
    on_failure: Callable[[], Awaitable[None]],
) -> Response:
    """Holds the response until there is content or a ping is due: until then a failure is a plain status.

    Raises ApiError and ClientGone; what `waiting` holds is then still the caller's to release.
    """
    follower = Follower(waiting, blobs, knobs)
    step = await follower.advance(asyncio.get_running_loop().time() + knobs.ping_s)
    if isinstance(step, Left):
        if step.why == "hung_up":
            waiting.leave()
            raise ClientGone
        raise deadline_passed() if step.why == "deadline" else waiting.abandon()
    if isinstance(step.end, Broken) and not step.events:
        if step.end.close:
            waiting.interrupt()
        if follower.task_failed:
            await on_failure()
        raise failed(step.end.failure)
    return StreamedAnswer(waiting, follower, step, knobs, floor, on_failure)
