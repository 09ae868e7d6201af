"""A worker in front of several backends, and a server that can be told to load, or to hang on one page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from schemas.fleet_messages import BackendState
from services.adapters.model_backends.openai import OpenAIBackend
from services.adapters.model_backends.server_look import ServerLook
from services.core.fleet import BreakerLaw, Pool, Timeouts
from services.worker_pools.backends import Backends
from tests.integration.worker_rig import POOL, WorkerRig

QUICK = BreakerLaw(window_s=30, min_calls=3, failure_rate=0.5, cooldown_s=0.6, cooldown_most_s=5)
IMPATIENT = Timeouts(connect_s=0.3, first_token_s=0.4, idle_s=0.4, total_s=30)
SEVERAL = replace(POOL, breaker=QUICK, timeouts=IMPATIENT)


@asynccontextmanager
async def backend_rig(
    urls: Sequence[str], blobs: Path, pool: Pool = SEVERAL, *, watched: bool = False, **knobs: Any
) -> AsyncIterator[WorkerRig]:
    """`watched`: the backends are asked before the first task, as in production."""
    client, look = OpenAIBackend(slots=pool.slots), ServerLook()
    rig = WorkerRig(client, blobs, replace(pool, base_urls=tuple(urls)), **{"look_s": 0.05, **knobs})
    if watched:
        rig.watched = {"look": look, "connections": client.connections}
    try:
        yield rig
    finally:
        await rig.close()
        await client.aclose()
        await look.aclose()


def backends_of(rig: WorkerRig) -> Backends:
    return rig._workers[-1].worker.backends()


def state_of(rig: WorkerRig, index: int = 0) -> BackendState:
    return backends_of(rig).states()[index]


class MoodyServer:
    """Says what it is told: `loading` (503 everywhere), `metrics` (None: 404), `hangs` on a page."""

    def __init__(self) -> None:
        self.loading = False
        self.metrics: str | None = None
        self.hangs: set[str] = set()
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.hangs:
            await asyncio.Event().wait()
        if self.loading:
            error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            return web.json_response({"error": error}, status=503)
        if request.path == "/metrics":
            return web.Response(text=self.metrics or "", status=200 if self.metrics else 404)
        message = {"role": "assistant", "content": "ready"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"object": "chat.completion", "choices": [choice]})

    def calls(self) -> int:
        return self.asked.count("/v1/chat/completions")


@asynccontextmanager
async def moody_server() -> AsyncIterator[MoodyServer]:
    moody, app = MoodyServer(), web.Application()
    app.router.add_route("*", "/{page:.*}", moody.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    moody.url = f"http://{host}:{port}"
    try:
        yield moody
    finally:
        await runner.cleanup()
