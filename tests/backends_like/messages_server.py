"""`python -m tests.backends_like.messages_server`: a server that behaves like Anthropic's Messages API.

It takes the settings of loadtest.model_server, and keeps its log. What an answer does is scripted as there,
by a JSON text as the last thing that the user says: `{"x_script": {...}, "x_marker": ...}`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import orjson

from loadtest.model_server import answers
from loadtest.model_server.answers import Answer
from loadtest.model_server.attempts import OK, Attempt
from loadtest.model_server.calls import Call, Kind
from loadtest.model_server.http_edge import Exchange, Request
from loadtest.model_server.script import Behaviour
from loadtest.model_server.server import ModelServer
from tests.backends_like.messages_checks import fault_in
from tests.backends_like.messages_events import Stream, message_of
from tests.backends_like.serving import run_server

KEY = "sk-ant-api03-very-secret-1234567890"
JSON = "application/json"
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>\n"
_ERRORS = {
    400: ("invalid_request_error", "scripted"),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "There is an issue with billing"),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "model: claude-none"),
    413: ("request_too_large", "Request exceeds the maximum allowed number of bytes."),
    429: ("rate_limit_error", "This request would exceed your organization's rate limit of 50 per minute"),
    500: ("api_error", "Internal server error"),
    529: ("overloaded_error", "Overloaded"),
}


class MessagesServer(ModelServer):
    """One POST path; the pages of its log are the model server's."""

    async def handle(self, request: Request, exchange: Exchange) -> None:
        if request.path != "/v1/messages":
            await super().handle(request, exchange)
        elif request.headers.get(b"x-api-key") != KEY.encode():
            await _refuse(exchange, 401)
        elif request.headers.get(b"anthropic-version") != b"2023-06-01":
            await _refuse(exchange, 400, "anthropic-version: header is required")
        else:
            await self._attempt("chat", request, exchange)

    async def _answer(self, kind: Kind, request: Request, exchange: Exchange, attempt: Attempt) -> str:
        body = orjson.loads(request.body)
        fault = fault_in(body)
        if fault is not None:
            await _refuse(exchange, 400, fault)
            return "refused"
        said = _said(body)
        attempt.marker = said.get("x_marker")
        attempt.stream = body.get("stream") is True
        behaviour = self._scripts.behaviour(said.get("x_script"))
        limit = body["max_tokens"]
        call = Call(kind, ("a few words in",), behaviour, attempt.stream, max_tokens=limit)
        attempt.tokens_in = call.tokens_in
        return await _play(call, answers.compose(call, self._settings), exchange, attempt)


def _said(body: Mapping[str, Any]) -> dict[str, Any]:
    texts = [block["text"] for block in body["messages"][-1]["content"] if block["type"] == "text"]
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(texts[-1] if texts else "")
        if isinstance(value, dict):
            return value
    return {}


async def _play(call: Call, answer: Answer, exchange: Exchange, attempt: Attempt) -> str:
    script = call.behaviour
    if script.delay_s:
        await asyncio.sleep(script.delay_s)
    if script.reset_before:
        await exchange.reset()
        return "scripted:reset_before"
    if script.answers_with_error:
        await _error(exchange, script)
        return "scripted:error"
    if call.stream and not script.json_not_sse:
        return await _stream(answer, script, exchange, attempt)
    if script.break_point is not None:
        exchange.start(200, JSON, length=10_000)
        await exchange.send(b'{"type":"message",')
        return await _break_off(exchange, script)
    body = orjson.dumps(message_of(answer))
    if script.bad_json_chunk is not None:
        body = body[:-1]
    await exchange.whole(200, JSON, body, split_bytes=script.split_bytes)
    attempt.tokens_out = answer.tokens_out
    return OK


async def _stream(answer: Answer, script: Behaviour, exchange: Exchange, attempt: Attempt) -> str:
    events = Stream(answer, script)
    exchange.start(
        200, script.content_type or "text/event-stream; charset=utf-8", split_bytes=script.split_bytes
    )
    sent = 0
    for piece, delta in events.pieces():
        if delta is not None:
            if script.break_point is not None and sent == script.break_point[1]:
                return await _break_off(exchange, script)
            if sent == script.bad_json_chunk:
                await exchange.send(events.torn())
            if script.failed_terminal and sent == 1:
                await exchange.send(events.error("overloaded_error", "Overloaded"))
                exchange.finish()
                return "scripted:failed_terminal"
            if script.chunk_interval_s and sent:
                await asyncio.sleep(script.chunk_interval_s)
            sent += 1
            attempt.chunks += 1
            attempt.tokens_out += delta.tokens
        await exchange.send(piece)
    exchange.finish()
    return OK


async def _break_off(exchange: Exchange, script: Behaviour) -> str:
    kind = script.break_point[0] if script.break_point is not None else "end"
    if kind == "hang":
        await exchange.silence()
    if kind == "reset":
        await exchange.reset()
        return "scripted:reset_after_chunks"
    exchange.finish()
    await exchange.close()
    return "scripted:end_after_chunks"


async def _error(exchange: Exchange, script: Behaviour) -> None:
    status = script.status or (502 if script.html_error else 200)
    headers = () if script.retry_after is None else (("retry-after", str(script.retry_after)),)
    if script.html_error:
        await exchange.whole(status, "text/html", _HTML, *headers)
        return
    raw = script.error_body
    body = error_body(status) if raw is None else raw.encode() if isinstance(raw, str) else orjson.dumps(raw)
    await exchange.whole(status, JSON, body, *headers, split_bytes=script.split_bytes)


def error_body(status: int, message: str | None = None) -> bytes:
    kind, words = _ERRORS.get(status, ("api_error", "Internal server error"))
    error = {"type": kind, "message": message or words}
    return orjson.dumps({"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"})


async def _refuse(exchange: Exchange, status: int, message: str | None = None) -> None:
    await exchange.whole(status, JSON, error_body(status, message))


if __name__ == "__main__":
    run_server(MessagesServer)
