"""An open-loop HTTP load: requests leave at their scheduled times whatever came back, timed from those times.

A generator that waits for answers before it sends again hides exactly the delays that matter (coordinated
omission); and one that burns a core of two measures itself. So: raw asyncio protocols, one connection for
each request under way, kept and used again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

CONTENT = re.compile(rb'"content":\s*"[^"]')
GRACE_S = 15.0


@dataclass(slots=True)
class Sample:
    """One request: seconds from its scheduled time; `first_s` is the first content of a stream."""

    at_s: float
    done_s: float = 0.0
    first_s: float = 0.0
    status: int = 0
    ok: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` requests a second for `seconds`, each a POST of `body` to `url`."""

    url: str
    body: bytes
    rate: float
    seconds: float
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)


class _Connection(asyncio.Protocol):
    """One keep-alive connection: a request at a time."""

    def __init__(self, free: deque[_Connection]) -> None:
        self._free = free
        self.transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._sample: Sample | None = None
        self._ended: asyncio.Future[None] | None = None
        self._due = 0.0
        self._stream = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own does not inherit from it

    def send(self, raw: bytes, sample: Sample, due: float, *, stream: bool) -> asyncio.Future[None]:
        if self.transport is None:
            raise ConnectionError("the connection closed before it was used")
        self._sample, self._due, self._stream, self._tail = sample, due, stream, b""
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(raw)
        return self._ended

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(ok=False)

    def on_body(self, body: bytes) -> None:
        sample = self._sample
        if self._stream and sample is not None:
            if not sample.first_s and CONTENT.search(body):
                sample.first_s = time.monotonic() - self._due
            self._tail = (self._tail + body)[-32:]

    def on_message_complete(self) -> None:
        sample = self._sample
        if sample is None:
            return
        sample.status = self._parser.get_status_code()
        sample.done_s = time.monotonic() - self._due
        whole = not self._stream or (b"[DONE]" in self._tail and sample.first_s > 0)
        self._end(ok=sample.status == 200 and whole)
        self._free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.transport = None
        self._end(ok=False)

    def _end(self, *, ok: bool) -> None:
        if self._sample is not None:
            self._sample.ok = ok
            self._sample = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


async def until(due: float) -> None:
    """Returns at a monotonic time, never before it: uvloop's timers count whole milliseconds."""
    while (wait := due - time.monotonic()) > 0:
        await asyncio.sleep(wait)


class HttpLoad:
    """Runs one load and keeps its samples."""

    def __init__(self, load: Load) -> None:
        self._load = load
        parts = urlsplit(load.url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        lines = [
            f"POST {parts.path} HTTP/1.1",
            f"host: {parts.netloc}",
            "content-type: application/json",
            f"content-length: {len(load.body)}",
            *(f"{name}: {value}" for name, value in load.headers.items()),
        ]
        self._raw = "\r\n".join(lines).encode() + b"\r\n\r\n" + load.body
        self._free: deque[_Connection] = deque()

    async def run(self) -> list[Sample]:
        """All samples, in the order of their scheduled times; what did not answer in time is not ok."""
        count = int(self._load.rate * self._load.seconds)
        begin = time.monotonic() + 0.05
        samples, running = [], []
        for index in range(count):
            due = begin + index / self._load.rate
            await until(due)
            sample = Sample(at_s=due - begin)
            samples.append(sample)
            running.append(asyncio.create_task(self._one(sample, due)))
        _, late = await asyncio.wait(running, timeout=GRACE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for connection in self._free:
            if connection.transport is not None:
                connection.transport.close()
        return samples

    async def _one(self, sample: Sample, due: float) -> None:
        connection = await self._connection()
        await connection.send(self._raw, sample, due, stream=self._load.stream)

    async def _connection(self) -> _Connection:
        while self._free:
            connection = self._free.popleft()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._free), self._host, self._port)
        return connection
