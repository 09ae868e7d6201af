"""Backends before their first task, and when one of them may have gone: asked, warmed, called `ready`.

Law: every backend has a loop of its own, so that one that hangs keeps nobody waiting. A backend is called
`ready` after its warm-up, which happens once in a start and may fail; from then on it is asked only when a
try suspects it. What it does not answer in time says nothing: the tries judge it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.messages import RunTask, TaskKind
from schemas.payload import Payload
from services.core.field_checks import Refusal
from services.core.fleet import Pool
from services.core.outgoing import Outgoing, outgoing
from services.ports import (
    BackendFault,
    BackendLook,
    Connections,
    MetricsAbsent,
    ModelCall,
    ModelClient,
    Presence,
)
from services.worker_pools.backends import Backends
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
WARM_UP_ATTEMPT = "warm-up-"  # begins the request id of a warm-up: it is no try of a task
_ABSENT_S = 300.0  # a server without metrics is asked again after that
_MOST_LOOKS = 8  # the longest pause, in first pauses


class BackendWatch:
    """`run` until cancelled; without `look` it has nothing to do."""

    def __init__(
        self,
        pool: Pool,
        backends: Backends,
        model: ModelClient,
        look: BackendLook | None,
        connections: Connections | None,
        new_attempt: Callable[[], str],
        knobs: WorkerKnobs,
    ) -> None:
        self._pool = pool
        self._backends = backends
        self._model = model
        self._look = look
        self._connections = connections
        self._new_attempt = new_attempt
        self._knobs = knobs
        self._suspected = {url: asyncio.Event() for url in backends.urls()}
        backends.on_suspect = lambda url: self._suspected[url].set()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                if self._look is not None:
                    for url in self._backends.urls():
                        group.create_task(self._follow(url, self._look))
                        group.create_task(self._poll_metrics(url, self._look))
                await asyncio.Event().wait()
        finally:
            self._backends.close()

    async def _follow(self, url: str, look: BackendLook) -> None:
        await self._until_ready(url, look)
        await self._warm(url)
        self._backends.present(url, "ready")
        log.info("backend ready", backend=url)
        while True:
            await self._suspected[url].wait()
            self._suspected[url].clear()
            presence = await look.presence(url)
            if presence in ("unreachable", "loading"):
                self._away(url, presence)
                await self._until_ready(url, look)
                self._suspected[url].clear()
                self._backends.present(url, "ready")
                log.info("backend back", backend=url)
            await asyncio.sleep(self._knobs.look_s)

    async def _until_ready(self, url: str, look: BackendLook) -> None:
        pause_s = self._knobs.look_s
        while (presence := await look.presence(url)) != "ready":
            if presence != self._backends.presence(url):
                self._away(url, presence)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_LOOKS * self._knobs.look_s)

    def _away(self, url: str, presence: Presence) -> None:
        log.warning("backend does not serve", backend=url, presence=presence)
        self._backends.present(url, presence)

    async def _warm(self, url: str) -> None:
        """Its connections, then one token, so that the first task meets a warm model. Never raises."""
        if self._connections is not None:
            await self._connections.open_early(url, self._pool.slots)
        sent = _shortest(self._pool) if self._pool.warm_up else None
        if sent is None:
            return
        attempt = WARM_UP_ATTEMPT + self._new_attempt()
        call = ModelCall(
            url, sent.path, sent.body, attempt, sent.streaming, self._pool.timeouts, sent.headers
        )
        try:
            async with asyncio.timeout(self._knobs.warm_up_s):
                async for _ in self._model.events(call):
                    pass
        except BackendFault as fault:
            log.warning("warm-up failed", backend=url, failure=fault.kind.value, status=fault.status)
        except TimeoutError:
            log.warning("warm-up gave up", backend=url, after_s=self._knobs.warm_up_s)

    async def _poll_metrics(self, url: str, look: BackendLook) -> None:
        every_s = pause_s = self._knobs.metrics_s
        while True:
            try:
                load = await look.load(url)
                pause_s = every_s if load is not None else min(2 * pause_s, 8 * every_s)
            except MetricsAbsent as absent:
                load, pause_s = None, _ABSENT_S
                log.info("backend without metrics", backend=url, reason=str(absent))
            self._backends.told(url, load)
            await asyncio.sleep(pause_s)


def _shortest(pool: Pool) -> Outgoing | None:
    """The smallest request that the pool's backends can be asked; None where any has effects, or none can."""
    if pool.backend not in ("openai", "anthropic"):
        return None
    kind: TaskKind = "embedding" if "embed" in pool.capabilities else "chat"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    if kind == "embedding":
        body = {"input": "Hi"}
    task = RunTask(task_id="warm-up", kind=kind, pool=pool.name, arrived_ms=0, body=Payload(inline=body))
    sent = outgoing(task, body, pool)
    return None if isinstance(sent, Refusal) else sent
