"""Server-Sent Events as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson
from starlette.responses import Response

from services.core.stream_binding import Event

DONE = b"data: [DONE]\n\n"
SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def sse(events: Iterable[Event]) -> bytes:
    return b"".join([b"data: " + orjson.dumps(event) + b"\n\n" for event in events])


def replayed_stream(events: list[Event], headers: Mapping[str, str]) -> Response:
    """A stream that is known whole before it begins."""
    return Response(sse(events) + DONE, headers=SSE_HEADERS | dict(headers))
