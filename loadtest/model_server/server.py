"""Routes, and the course of one attempt from its first to its last byte."""

from __future__ import annotations

import asyncio
import os
import random
import re
import zlib

import orjson

from loadtest.model_server.answers import error_body
from loadtest.model_server.attempts import DISCONNECTED, REFUSED, STOPPED, Attempt, AttemptLog, metrics_text
from loadtest.model_server.calls import Call, CallError, Kind, call_of, decoded
from loadtest.model_server.http_edge import Connection, Exchange, Request
from loadtest.model_server.pace import Pace, Slots
from loadtest.model_server.play import JSON, Stage, play
from loadtest.model_server.script import ScriptBook, ScriptError
from loadtest.model_server.settings import ServerSettings

CALLS: dict[str, Kind] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/v1/embeddings": "embedding",
}
BAD_INPUT = "\x00bad"
_AZURE = re.compile(r"/openai/deployments/[^/]+(/chat/completions|/completions|/embeddings)")
PAGES = {
    "/v1/models": "GET",
    "/health": "GET",
    "/metrics": "GET",
    "/log": "GET",
    "/state": "GET",
    "/reset": "POST",
}


class ModelServer:
    """Answers requests from `start` to `stop`; `port` is known once it has started."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._log = AttemptLog(settings.log_file, settings.kept_attempts)
        self._slots = Slots(settings.slots)
        self._scripts = ScriptBook()
        self._peers: set[Connection] = set()
        self._stopping = False
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listens, then tells the port. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._settings.host, self._settings.port
        self._server = await loop.create_server(
            lambda: Connection(self.handle, self._peers, self._settings.keep_alive_s),
            host,
            port,
            backlog=1024,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Ends every connection at once; attempts in work are logged as stopped."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(peer.stop() for peer in list(self._peers)))
        self._log.close()

    async def handle(self, request: Request, exchange: Exchange) -> None:
        kind = CALLS.get(request.path) or azure_kind(request)
        allowed = PAGES.get(request.path) if kind is None else "POST"
        if allowed is None:
            await _refuse(exchange, 404, f"there is no {request.path}", "not_found")
        elif request.method != allowed:
            await _refuse(exchange, 405, f"{request.path} takes {allowed}", "method_not_allowed")
        elif kind is None:
            await self._page(request.path, exchange)
        else:
            await self._attempt(kind, request, exchange)

    async def _attempt(self, kind: Kind, request: Request, exchange: Exchange) -> None:
        others = _text(request, b"x-chimera-attempts") or ""
        attempt = Attempt(
            _text(request, b"x-request-id"),
            request.path,
            _text(request, b"traceparent"),
            tuple(filter(None, others.split(","))),
        )
        self._log.begin(attempt)
        try:
            attempt.outcome = await self._answer(kind, request, exchange, attempt)
        except (CallError, ScriptError) as error:
            attempt.outcome = REFUSED
            param = error.param if isinstance(error, CallError) else error.field
            await _refuse(exchange, 400, str(error), "invalid_request_error", param)
        except asyncio.CancelledError:
            attempt.outcome = STOPPED if self._stopping else DISCONNECTED
            raise
        finally:
            self._log.end(attempt)

    async def _answer(self, kind: Kind, request: Request, exchange: Exchange, attempt: Attempt) -> str:
        fields = decoded(request.body)
        attempt.marker = fields.get("x_marker")
        attempt.stream = fields.get("stream") is True
        call = call_of(kind, fields, self._scripts.behaviour(fields.get("x_script")))
        if kind == "embedding":
            self._check_inputs(call)
        attempt.tokens_in = call.tokens_in
        await self._slots.take()
        try:
            pace = Pace(self._settings, call.behaviour, self._slots, call.tokens_in, self._draw(call))
            return await play(Stage(call, self._settings, exchange, pace, attempt))
        finally:
            self._slots.give_back()

    def _check_inputs(self, call: Call) -> None:
        """A text with this in it is a bad input, which fails the whole call, as it does with OpenAI."""
        if any(BAD_INPUT in text for text in call.prompts):
            raise CallError(f"an input has {BAD_INPUT!r} in it", "input")
        if len(call.prompts) > self._settings.most_inputs:
            raise CallError(f"more than {self._settings.most_inputs} inputs", "input")

    def _draw(self, call: Call) -> random.Random | None:
        """Jitter depends on seed and prompt, not on the order in which requests arrive."""
        if self._settings.jitter == 0:
            return None
        text = "\n".join(call.prompts).encode("utf-8", "surrogatepass")
        return random.Random(zlib.crc32(text, self._settings.seed & 0xFFFFFFFF))

    async def _page(self, path: str, exchange: Exchange) -> None:
        if path == "/metrics":
            body = metrics_text(self._log, self._slots.busy, self._slots.queued)
            await exchange.whole(200, "text/plain; version=0.0.4; charset=utf-8", body)
        elif path == "/log":
            await exchange.whole(200, "application/x-ndjson", self._log.lines())
        else:
            await exchange.whole(200, JSON, orjson.dumps(self._facts(path)))

    def _facts(self, path: str) -> dict[str, object]:
        if path == "/v1/models":
            model = {"id": self._settings.model, "object": "model", "created": 0, "owned_by": "loadtest"}
            return {"object": "list", "data": [model]}
        if path == "/state":
            running = list(self._log.running.values())
            return {
                "pid": os.getpid(),
                "in_flight": len(running),
                "busy": self._slots.busy,
                "queued": self._slots.queued,
                "attempts": [attempt.attempt for attempt in running],
            }
        if path == "/reset":
            self._log.clear()
            self._scripts.clear()
        return {"status": "ok"}


def azure_kind(request: Request) -> Kind | None:
    """The call, where the request is as Azure OpenAI wants it: deployment, version and its own key header."""
    found = _AZURE.fullmatch(request.path)
    asked = "api-version=" in request.query and b"api-key" in request.headers
    return CALLS["/v1" + found[1]] if found and asked and b"authorization" not in request.headers else None


def _text(request: Request, name: bytes) -> str | None:
    value = request.headers.get(name)
    return None if value is None else value.decode("latin-1")


async def _refuse(exchange: Exchange, status: int, message: str, code: str, param: str | None = None) -> None:
    body = error_body(message, "invalid_request_error", code, param)
    await exchange.whole(status, JSON, orjson.dumps(body))
