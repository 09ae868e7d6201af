"""`python -m tests.backends_like.tool_service`: a service at `/run` that does as its arguments say.

Its log is the model server's; an attempt's marker is the call's Idempotency-Key.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from loadtest.model_server.attempts import OK, Attempt
from loadtest.model_server.calls import Kind
from loadtest.model_server.http_edge import Exchange, Request
from loadtest.model_server.server import ModelServer
from tests.backends_like.serving import run_server


class ToolService(ModelServer):
    """`{"sum": [1, 2]}` adds. `status`, `body`, `type`, `headers` say what is answered; `delay_s`, `reset`,
    `half`, `hang` how; `fail_first`: a 503 to the first call with that key."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._seen: set[str | None] = set()

    async def handle(self, request: Request, exchange: Exchange) -> None:
        if request.path != "/run":
            await super().handle(request, exchange)
        elif request.method != "POST":
            await exchange.whole(405, "text/plain", b"POST only")
        else:
            await self._attempt("chat", request, exchange)

    async def _answer(
        self,
        kind: Kind,  # noqa: ARG002 - the model server's signature
        request: Request,
        exchange: Exchange,
        attempt: Attempt,
    ) -> str:
        key = request.headers.get(b"idempotency-key", b"").decode()
        attempt.marker = key
        call = orjson.loads(request.body)
        asked = call["arguments"]
        if asked.get("delay_s"):
            await asyncio.sleep(asked["delay_s"])
        if asked.get("hang"):
            await exchange.silence()
        if asked.get("reset"):
            await exchange.reset()
            return "scripted:reset"
        if asked.get("fail_first") and key not in self._seen:
            self._seen.add(key)
            await exchange.whole(503, "text/html", b"<html>busy</html>", ("retry-after", "0"))
            return "scripted:503"
        return await _said(exchange, asked, call)


async def _said(exchange: Exchange, asked: dict[str, Any], call: dict[str, Any]) -> str:
    if "body" in asked:
        body = asked["body"].encode() * int(asked.get("times", 1))
    else:
        body = orjson.dumps({"sum": sum(asked.get("sum", ())), "name": call.get("name")})
    kind = asked.get("type", "application/json")
    headers = tuple((asked.get("headers") or {}).items())
    if asked.get("half"):
        exchange.start(200, kind, length=len(body) + 10)
        await exchange.send(body)
        await exchange.reset()
        return "scripted:half"
    await exchange.whole(asked.get("status", 200), kind, body, *headers)
    return OK


if __name__ == "__main__":
    run_server(ToolService)
