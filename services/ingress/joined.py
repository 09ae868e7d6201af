"""A stream whose Idempotency-Key belongs to another call: pinged while that one decides about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from services.ingress.call_record import CallRecord
from services.ingress.errors import ApiError
from services.ingress.sse_form import SSE_HEADERS
from services.ingress.streaming import PING
from services.ingress.whole import ClientGone
from services.ports import StoredOutcome

Settled = StoredOutcome | None
Answer = Callable[[Settled], Awaitable[Response]]


async def joined_stream(
    settling: Coroutine[Any, Any, Settled], answer: Answer, ping_s: float, record: CallRecord
) -> Response:
    """What `answer` makes of what is settled; where that takes longer than a ping, the response begins first.

    Raises what either raises, as long as the response has not begun.
    """
    task = asyncio.create_task(settling)
    try:
        done, _ = await asyncio.wait({task}, timeout=ping_s)
    except BaseException:
        task.cancel()
        raise
    return await answer(task.result()) if done else JoinedStream(task, answer, ping_s, record)


class JoinedStream(Response):
    """Pings until it is settled, then goes on as the answer's body; a failure is the stream's last event."""

    def __init__(
        self, settling: asyncio.Task[Settled], answer: Answer, ping_s: float, record: CallRecord
    ) -> None:
        super().__init__(headers=SSE_HEADERS)
        self._settling, self._answer, self._ping_s, self._record = settling, answer, ping_s, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while not self._settling.done():
                await send({"type": "http.response.body", "body": PING, "more_body": True})
                await asyncio.wait({self._settling}, timeout=self._ping_s)
            response = await self._answer(self._settling.result())
        except ApiError as error:
            self._record.status, self._record.reason = error.counted, error.code
            await send({"type": "http.response.body", "body": error.event()})
        except (ClientDisconnect, ClientGone):
            self._record.status = "cancelled"
            await send({"type": "http.response.body", "body": b""})
        else:
            await response(scope, receive, _begun(send))
        finally:
            self._settling.cancel()


def _begun(send: Send) -> Send:
    """`send` of a response that has begun: only bodies pass."""

    async def send_body(message: Message) -> None:
        if message["type"] != "http.response.start":
            await send(message)

    return send_body
