"""One tool server, connected: started or dialled early, and again with back-off after it went away.

The SDK's contexts belong to the task that entered them, so each link has one task that holds them; calls
come from other tasks and share the session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog
from mcp import Client
from mcp.client import IncomingMessage
from mcp.types import Implementation

from schemas.failures import FailureKind
from services.adapters.model_backends.mcp_transport import Open
from services.ports import BackendFault, RandomUnit

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 10.0  # who lived that long begins anew at the first pause
_MOST_PAGES = 100


@dataclass(eq=False, slots=True)
class Connected:
    """A session that was initialised, and the names of its server's tools. `lost`: for who sees it broken."""

    client: Client
    tools: frozenset[str]
    lost: Callable[[], None]

    async def list_again(self) -> None:
        self.tools = await tools_of(self.client)


class McpLink:
    """`start_s`: until a server must have initialised and listed its tools."""

    def __init__(self, where: Open, start_s: float, uniform: RandomUnit) -> None:
        self._open = where
        self._start_s = start_s
        self._uniform = uniform
        self._live: asyncio.Future[Connected] | None = None
        self._gone = asyncio.Event()  # of the newest session
        self._runner: asyncio.Task[None] | None = None
        self._closing = False

    async def connected(self, within_s: float) -> Connected:
        """The session, once there is one. Raises BackendFault: UNREACHABLE after `within_s`."""
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(self._coming())
        except TimeoutError:
            words = "the tool server is not there, or does not initialise"
            raise BackendFault(FailureKind.UNREACHABLE, words) from None

    async def aclose(self) -> None:
        """Ends the server, in seconds at most."""
        self._closing = True
        if self._runner is None:
            return
        if self._coming().done():
            self._gone.set()
        else:
            self._runner.cancel()
        await asyncio.wait({self._runner})

    def _coming(self) -> asyncio.Future[Connected]:
        """The session that is there, or the next one."""
        if self._live is None:
            self._live = asyncio.get_running_loop().create_future()
        return self._live

    async def _run(self) -> None:
        failures = 0
        while not self._closing:
            began_s = time.monotonic()
            try:
                await self._live_once()
                if not self._closing:
                    _log.warning("a tool server is gone")
            except Exception as fault:  # noqa: BLE001 - whatever ends a connection ends no more than that
                _log.warning("no tool server", fault=_named(fault))
            self._lost(self._gone)
            failures = 1 if time.monotonic() - began_s > _STEADY_S else failures + 1
            if not self._closing:
                await asyncio.sleep(self._pause_s(failures))

    async def _live_once(self) -> None:
        """Returns when the connection is over. Raises what the SDK raises, TimeoutError."""
        gone = self._gone = asyncio.Event()

        def lost() -> None:
            self._lost(gone)

        async with AsyncExitStack() as stack:
            # Not anyio's: its scopes must end in the order they began, and the client's outlive this one.
            async with asyncio.timeout(self._start_s):
                client = await stack.enter_async_context(
                    Client(
                        self._open(lost),
                        client_info=Implementation(name="chimera", version="1"),
                        message_handler=_heard,
                        cache=None,
                    )
                )
                live = Connected(client, await tools_of(client), lost)
            self._coming().set_result(live)
            await gone.wait()

    def _lost(self, gone: asyncio.Event) -> None:
        """Nobody gets that session any more; its holder lets go of it, which may take seconds."""
        gone.set()
        if gone is self._gone and self._live is not None and self._live.done():
            self._live = None

    def _pause_s(self, failures: int) -> float:
        window_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
        return window_s * (0.5 + self._uniform() / 2)


async def tools_of(client: Client) -> frozenset[str]:
    names: set[str] = set()
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        names.update(tool.name for tool in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return frozenset(names)


async def _heard(message: IncomingMessage) -> None:
    """Only what is no message is worth a word, and no more than that: it may be anything."""
    if isinstance(message, Exception):
        _log.warning("a tool server said something that is not MCP", fault=type(message).__name__)
    await asyncio.sleep(0)


def _named(fault: BaseException) -> str:
    """The kinds of error within: their words may quote anything."""
    if isinstance(fault, BaseExceptionGroup):
        return ", ".join(sorted({_named(inner) for inner in fault.exceptions}))
    return type(fault).__name__
