"""Restarts a consumer that stopped silently (CASES Q7): liveness is progress, not an open connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_LEAST_PAUSE_S = 1.0


class Watchdog:
    """Asks `why_stalled` every `every_s`, and `restart`s when it has an answer or somebody demanded it."""

    def __init__(
        self,
        name: str,
        *,
        every_s: float,
        why_stalled: Callable[[], Awaitable[str | None]],
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self._name = name
        self._every_s = every_s
        self._why_stalled = why_stalled
        self._restart = restart
        self._demanded = asyncio.Event()
        self._demand = ""
        self._task: asyncio.Task[None] | None = None
        self.restarts = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def demand(self, reason: str) -> None:
        """Have the consumer restarted soon, whatever the watch says."""
        self._demand = reason
        self._demanded.set()

    async def _watch(self) -> None:
        while True:
            reason = await self._next_reason()
            if reason is None:
                continue
            self.restarts += 1
            log.error("%s is restarted: %s", self._name, reason)
            try:
                await self._restart()
            except Exception:
                log.exception("%s: restart failed", self._name)
                self.demand("the last restart failed")
            await asyncio.sleep(min(_LEAST_PAUSE_S, self._every_s))  # never a hot loop of restarts

    async def _next_reason(self) -> str | None:
        try:
            async with asyncio.timeout(self._every_s):
                await self._demanded.wait()
        except TimeoutError:
            try:
                return await self._why_stalled()
            except Exception:
                log.exception("%s: the watch failed", self._name)
                return None
        self._demanded.clear()
        return self._demand
