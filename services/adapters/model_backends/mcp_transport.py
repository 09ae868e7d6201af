"""The two ways to a tool server: a process of our own over its pipes, or a URL. With word of the end of it.

What the process writes to stderr goes through our log, where secrets are blotted out; it gets the variables
of the fleet file and none of ours.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TextIO

import httpx2
import structlog
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

_log = structlog.get_logger(__name__)
_LINE_BYTES = 4096

Opened = AbstractAsyncContextManager[Any]  # the SDK's pair of streams
Open = Callable[[Callable[[], None]], Opened]
"""Opens a connection; calls what it is given when the server has ended it."""


def over_pipes(command: tuple[str, ...], env: Mapping[str, str]) -> Open:
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(env))

    @asynccontextmanager
    async def opened(ended: Callable[[], None]) -> AsyncIterator[Any]:
        async with _logged_stderr() as stderr, stdio_client(parameters, stderr) as (reading, writing):
            yield _Watched(reading, ended), writing

    return opened


def over_http(url: str, api_key: str | None, connect_s: float) -> Open:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    @asynccontextmanager
    async def opened(ended: Callable[[], None]) -> AsyncIterator[Any]:
        # How long an answer may take is each call's own; connections are as many as there are slots.
        timeout = httpx2.Timeout(None, connect=connect_s)
        limits = httpx2.Limits(max_connections=None)
        async with (
            httpx2.AsyncClient(
                headers=headers,
                timeout=timeout,
                limits=limits,
                trust_env=False,
                event_hooks={"response": [_refusals_logged]},
            ) as client,
            streamable_http_client(url, http_client=client) as (reading, writing),
        ):
            yield _Watched(reading, ended), writing

    return opened


async def _refusals_logged(response: httpx2.Response) -> None:
    """The SDK keeps the status to itself; a 404 and a 405 are how older servers say what they have not."""
    if response.status_code >= 400 and response.status_code not in (404, 405):
        _log.warning("a tool server refused a request", status=response.status_code)


class _Watched:
    """The SDK's stream of what the server says, which tells of its end: the session keeps that to itself."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> _Watched:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._inner)
        except StopAsyncIteration:
            self._ended()
            raise


@asynccontextmanager
async def _logged_stderr() -> AsyncIterator[TextIO]:
    """A file for a process to write to; its lines are logged."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "w") as sink:
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        copying = asyncio.create_task(_log_lines(reader))
        try:
            yield sink
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)
            transport.close()
            await asyncio.sleep(0)  # it lets go of the pipe in the next turn


async def _log_lines(reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_LINE_BYTES):
        for line in data.decode("utf-8", "replace").splitlines():
            if line.strip():
                _log.info("a tool server says", line=line)
