"""HTTP/1.1 on raw sockets: cheap, and able to break as no framework lets one (RST, half bodies, split bytes).

One request at a time per connection, pipelined ones wait. The handler of a request runs as a task that is
cancelled the moment its client hangs up (FIN or RST), also before the first byte of an answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import httptools

_LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_PENDING_BYTES = 64 * 1024
_FLUSH_POLL_S = 0.001
_FLUSH_POLLS = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """Header names are lower case."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    query: str = ""


class Exchange:
    """The answering side of one request. After `finish`, `reset` or `close` nothing more may be sent."""

    def __init__(self, connection: Connection, keep_alive: bool) -> None:
        self._connection = connection
        self._chunked = False
        self._split_bytes: int | None = None
        self.keep_alive = keep_alive

    def start(
        self,
        status: int,
        content_type: str,
        *,
        length: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        split_bytes: int | None = None,
    ) -> None:
        """Sends the head. Without `length` (bytes) the body is chunked, one HTTP chunk for each `send`."""
        self._chunked = length is None
        self._split_bytes = split_bytes
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        phrase = _PHRASES.get(status, "Scripted")
        lines = [f"HTTP/1.1 {status} {phrase}", f"content-type: {content_type}", framing]
        lines.extend(f"{name}: {value}" for name, value in headers)
        if not self.keep_alive:
            lines.append("connection: close")
        self._connection.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def send(self, data: bytes) -> None:
        """Waits while the client reads slower than we write."""
        if self._split_bytes is None:
            self._write(data)
        else:
            for at in range(0, len(data), self._split_bytes):
                self._write(data[at : at + self._split_bytes])
                await asyncio.sleep(0)  # the loop flushes per turn: each piece gets a write of its own
        if self._connection.paused:
            await self._connection.drained.wait()

    async def whole(
        self,
        status: int,
        content_type: str,
        body: bytes,
        *headers: tuple[str, str],
        split_bytes: int | None = None,
    ) -> None:
        self.start(status, content_type, length=len(body), headers=headers, split_bytes=split_bytes)
        await self.send(body)
        self.finish()

    def finish(self) -> None:
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")

    async def silence(self) -> None:
        """Keeps the connection open and says nothing until the client hangs up, which cancels the caller."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Ends the connection with FIN behind what was sent, whatever the head promised."""
        self.keep_alive = False
        await self._connection.flushed()

    async def reset(self) -> None:
        """Ends the connection with RST once the client's kernel has what was sent."""
        await self._connection.flushed()
        self._connection.reset()

    def _write(self, data: bytes) -> None:
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)


Handler = Callable[[Request, Exchange], Coroutine[Any, Any, None]]


class Connection(asyncio.Protocol):
    """One client connection; `peers` holds the open ones, so that a stop can end them."""

    def __init__(self, handler: Handler, peers: set[Connection], keep_alive_s: float = 0.0) -> None:
        self._keep_alive_s = keep_alive_s
        self._idle: asyncio.TimerHandle | None = None
        self._handler = handler
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._ended_here = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self.paused = False
        self.drained = asyncio.Event()

    # transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by behaviour, not by class
        self._peers.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self._close()

    def eof_received(self) -> None:
        self._lose()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._peers.discard(self)
        self._lose()
        self._transport = None

    def pause_writing(self) -> None:
        self.paused = True
        self.drained.clear()

    def resume_writing(self) -> None:
        self.paused = False
        self.drained.set()

    # parser callbacks

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=query,
            headers=self._headers,
            body=b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
        )
        self._waiting.append(request)
        if self._task is None:
            self._serve_next()

    # for the exchange and the server

    def write(self, data: bytes) -> None:
        """Sent at the end of this turn of the loop: one system call for all events of a turn."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _PENDING_BYTES:
            self._flush()

    async def flushed(self) -> None:
        """Waits until our side has handed everything to the kernel, a second at most."""
        self._flush()
        for _ in range(_FLUSH_POLLS):
            if self._transport is None or self._transport.get_write_buffer_size() == 0:
                return
            await asyncio.sleep(_FLUSH_POLL_S)

    def reset(self) -> None:
        self._ended_here = True
        if self._transport is None:
            return
        descriptor = self._transport.get_extra_info("socket").fileno()
        # The option belongs to the socket, not to the descriptor: set it through a copy, close the copy.
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()

    async def stop(self) -> None:
        """Cancels what runs, waits for its end, and ends the connection at once."""
        task = self._task
        self._lose()
        self._abort()
        if task is not None:
            await asyncio.wait([task])

    def _serve_next(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        request = self._waiting.popleft()
        exchange = Exchange(self, request.keep_alive)
        self._task = self._loop.create_task(self._handler(request, exchange))
        self._task.add_done_callback(lambda task: self._served(task, exchange))

    def _served(self, task: asyncio.Task[None], exchange: Exchange) -> None:
        self._task = None
        if task.cancelled():
            return
        if (fault := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a handler failed", "exception": fault})
            self._abort()
        elif not exchange.keep_alive:
            self._close()
        elif self._waiting:
            self._serve_next()
        elif self._keep_alive_s:
            self._idle = self._loop.call_later(self._keep_alive_s, self._close)

    def _flush(self) -> None:
        if self._pending and self._transport is not None:
            self._transport.write(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0

    def _close(self) -> None:
        self._ended_here = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _lose(self) -> None:
        """The client is gone (or we stop): nothing is left to answer."""
        self._waiting.clear()
        if self._task is not None and not self._ended_here:
            self._task.cancel()
