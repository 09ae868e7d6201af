"""The small HTTP server beside a service: /healthz, /readyz and /metrics on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import uvicorn
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Health = Callable[[], Awaitable[tuple[bool, Mapping[str, Any]]]]


def health_app(*, alive: Health, ready: Health) -> Starlette:
    """`alive` is progress, not a pulse; both return (good, what to show) and are asked at each call."""

    def answer(check: Health) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(_: Request) -> Response:
            good, shown = await check()
            return JSONResponse({"status": "ok" if good else "unavailable", **shown}, 200 if good else 503)

        return endpoint

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return Starlette(
        routes=[
            Route("/healthz", answer(alive)),
            Route("/readyz", answer(ready)),
            Route("/metrics", metrics),
        ]
    )


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the service decides when to stop."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override] # a generator there
        return nullcontext()


@asynccontextmanager
async def serving(app: Any, *, host: str, port: int, **uvicorn_options: Any) -> AsyncIterator[int]:
    """Serves an ASGI app while the body runs; yields the port that it listens on (useful with port 0).

    Raises OSError where the address is taken.
    """
    listener = socket.create_server((host, port), backlog=1024)
    options: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"} | uvicorn_options
    server = _Server(uvicorn.Config(app, **options))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()
