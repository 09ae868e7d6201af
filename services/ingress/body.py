"""A request's body: read within its limit, parsed beside the loop where it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from schemas.payload import REQUEST_LIMIT_BYTES
from services.core.admission import Admitted, BodyKind, admit
from services.core.field_checks import Refusal
from services.ingress.errors import ApiError, refused

_OFF_LOOP_BYTES = 64 * 1024
_MOST_S = 60.0  # for the whole of it: 8 MiB at a megabit a second


async def read_body(headers: Mapping[str, str], receive: Receive, within_s: float = _MOST_S) -> bytes:
    """The whole body. Raises ApiError 413 past 8 MiB, 408 past its time and 415 for a compressed one,
    ClientDisconnect when the client hangs up."""
    coding = headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise ApiError(
            415,
            f"The body is sent with content-encoding {coding[:32]!r}; expected it as it is, in JSON.",
            code="unsupported_content_encoding",
        )
    told = headers.get("content-length", "")
    if told.isdigit() and int(told) > REQUEST_LIMIT_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(within_s):
            return await _whole(receive)
    except TimeoutError:
        raise ApiError(
            408,
            f"The request body did not arrive within {within_s:g} s.",
            code="request_timeout",
            headers={"connection": "close"},
        ) from None


async def _whole(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        if size > REQUEST_LIMIT_BYTES:
            raise _too_large()
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def admit_body(kind: BodyKind, raw: bytes) -> Admitted:
    """What the body asks for. Raises ApiError 400 naming what is wrong."""
    if len(raw) > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(_admit, kind, raw)
    return _admit(kind, raw)


def _admit(kind: BodyKind, raw: bytes) -> Admitted:
    try:
        body: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as fault:
        # Only the place: the decoder's own text may quote the document.
        place = f"line {fault.lineno} column {fault.colno}"
        raise refused(
            Refusal(f"The request body is not valid JSON ({place}).", None, "invalid_json")
        ) from None
    verdict = admit(kind, body)
    if isinstance(verdict, Refusal):
        raise refused(verdict)
    return verdict


def _too_large() -> ApiError:
    return ApiError(
        413, f"The request body is larger than {REQUEST_LIMIT_BYTES} bytes.", code="request_too_large"
    )
