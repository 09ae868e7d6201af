"""The bytes of an answer with status 200 to JSON objects, whatever the server calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import orjson

from schemas.failures import FailureKind
from services.core import backend_errors
from services.core.sse import Event, EventTooLargeError, SseDecoder
from services.ports import BackendFault

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_SSE_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")
_TELLING_BYTES = 6  # of the longest of them
_BOM = b"\xef\xbb\xbf"

Batch = Sequence[dict[str, Any]]


class SseAnswer:
    """Feed it bytes; it gives the events they complete. `ended` once [DONE] came."""

    __slots__ = ("_decoder", "_secrets", "ended", "fault")

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._decoder = SseDecoder()
        self._secrets = secrets
        self.ended = False
        self.fault: BackendFault | None = None  # raised once the events before it are out

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        try:
            return self._objects(self._decoder.feed(data))
        except EventTooLargeError:
            self.fault = BackendFault(FailureKind.BAD_ANSWER, "the backend sent an event beyond all bounds")
            return []

    def finish(self) -> list[dict[str, Any]]:
        """The body has ended: what a server without a final blank line left over."""
        return [] if self.ended else self._objects(self._decoder.finish())

    def _objects(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, data in events:
            if self.ended or self.fault is not None:
                break
            if data.strip() == b"[DONE]":
                self.ended = True
                break
            self._take(name, data, found)
        return found

    def _take(self, name: str, data: bytes, found: list[dict[str, Any]]) -> None:
        if not data.strip():
            return
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            self.fault = BackendFault(
                FailureKind.BAD_ANSWER, "the backend sent an event that is no JSON object"
            )
        elif name == "error" or backend_errors.is_error(value):
            self.fault = fault_of(value, self._secrets)
        else:
            found.append(value)


def fault_of(value: dict[str, Any], secrets: tuple[str, ...]) -> BackendFault:
    """The fault that an error object in an answer means."""
    failure = backend_errors.of_event(value, secrets)
    return BackendFault(
        failure.kind, failure.message, status=failure.status, code=failure.code, param=failure.param
    )


async def begun(pieces: AsyncIterator[bytes]) -> bytes:
    """The first bytes of a body, as many as tell what it is, or all of a shorter one."""
    first = b""
    async for piece in pieces:
        first += piece
        if len(_start(first)) >= _TELLING_BYTES:
            break
    return first


def is_sse(content_type: str, first: bytes) -> bool | None:
    """Whether the answer is a stream; None where it is neither a stream nor JSON.

    The bytes are believed before the type is: no line of a stream begins with a bracket, and there are
    servers that announce a stream and send JSON, or the other way round.
    """
    start = _start(first)
    if start[:1] in (b"{", b"["):
        return False
    if start.startswith(_SSE_BEGINS) or content_type.startswith("text/event-stream"):
        return True
    return None


def _start(first: bytes) -> bytes:
    return first.removeprefix(_BOM).lstrip()


async def whole(first: bytes, rest: AsyncIterator[bytes], secrets: tuple[str, ...]) -> dict[str, Any]:
    """The one JSON object that the body is. Raises BackendFault."""
    parts, size = [first], len(first)
    async for data in rest:
        parts.append(data)
        size += len(data)
        if size > MAX_ANSWER_BYTES:
            raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is beyond all bounds")
    try:
        value = orjson.loads(b"".join(parts).removeprefix(_BOM))
    except orjson.JSONDecodeError:
        raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is not JSON") from None
    if not isinstance(value, dict):
        raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is no JSON object")
    if backend_errors.is_error(value):
        raise fault_of(value, secrets)
    return value
