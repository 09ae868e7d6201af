"""HTTP before it is a request: heads have bounds in bytes and time; what is no HTTP is refused in the shape.

uvicorn's own protocol keeps a head of any length, waits for its end for ever, and refuses in plain text.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uuid_utils
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from services.ingress.errors import ApiError

ABORT_KEY = "chimera.abort"  # in a scope: ends its connection at once, with all that is buffered for it
MOST_HEAD_BYTES = 64 * 1024  # and what came with them in one read
_HEAD_S = 60.0  # as long as an idle connection is kept
_LAST_HEAD_S = 1.0  # for a request that was on its way when the service was told to stop


class EdgeProtocol(HttpToolsProtocol):
    """One connection. The time for a head runs from its first byte, for the first one from the connection."""

    head_s = _HEAD_S
    last_head_s = _LAST_HEAD_S
    _in_head = False
    _stopping = False
    _head_bytes = 0
    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as above it
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                words = f"The request's headers are larger than {MOST_HEAD_BYTES} bytes."
                self._refuse(ApiError(431, words, code="headers_too_large"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT_KEY] = self.transport.abort
        self._head_bytes = 0
        self._in_head = True
        if self._head_due is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """The service stops: what is asked is answered. A connection without a request may have one on its
        way, and its sender could not know whether it was taken: it is closed after a moment, not at once."""
        self._stopping = True
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            super().shutdown()
        else:
            self.loop.call_later(self.last_head_s, self._head_is_late)

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _expect_head(self) -> None:
        self._head_due = self.loop.call_later(self.head_s, self._head_is_late)

    def _head_is_here(self) -> None:
        self._in_head = False
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _head_is_late(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._expect_head()  # the answer to the request before it is still on its way
        elif self._in_head:
            self._refuse(
                ApiError(408, "The request's headers did not arrive in time.", code="request_timeout")
            )
        else:
            self.transport.close()  # it never said a word

    def _refuse(self, error: ApiError) -> None:
        self._head_is_here()
        body = error.body()
        lines = (
            STATUS_LINE[error.status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"x-request-id: %s\r\n" % str(uuid_utils.uuid7()).encode(),
            b"connection: close\r\n\r\n",
            body,
        )
        self.transport.write(b"".join(lines))
        self.transport.close()
