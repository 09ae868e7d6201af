"""Sends one answer at its pace, and breaks it where the script says. Returns what the log calls the outcome.

Order of an answer: delay_s, then the faults before the first byte, then the head, ttft_s, content, the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.model_server import answers
from loadtest.model_server.answers import FAILURE, Answer, Delta, error_body
from loadtest.model_server.attempts import OK, Attempt
from loadtest.model_server.calls import Call
from loadtest.model_server.events import Events
from loadtest.model_server.http_edge import Exchange
from loadtest.model_server.pace import Pace
from loadtest.model_server.script import Behaviour, BreakKind
from loadtest.model_server.settings import ServerSettings

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
_HTML_ERROR = b"<html><head><title>Bad Gateway</title></head><body><h1>502</h1></body></html>\n"


@dataclass(frozen=True, slots=True)
class Stage:
    """All that one answer needs: the call, how to send it, when, and where to count what was sent."""

    call: Call
    settings: ServerSettings
    exchange: Exchange
    pace: Pace
    attempt: Attempt

    @property
    def script(self) -> Behaviour:
        return self.call.behaviour


async def play(stage: Stage) -> str:
    script = stage.script
    await stage.pace.first_byte()
    if script.reset_before:
        await stage.exchange.reset()
        return "scripted:reset_before"
    if script.close_before:
        await stage.exchange.close()
        return "scripted:close_before"
    if script.raw is not None:
        return await _play_raw(stage, script.raw)
    if script.answers_with_error:
        return await _play_error(stage)
    if script.break_point == ("hang", 0):
        await stage.exchange.silence()
    if stage.call.kind == "embedding":
        await stage.pace.first_content()
        return await _play_body(stage, answers.embeddings(stage.call, stage.settings), 0, OK)
    answer = answers.compose(stage.call, stage.settings)
    if stage.call.stream and not script.json_not_sse:
        return await _play_stream(stage, answer)
    return await _play_whole(stage, answer)


async def _play_raw(stage: Stage, raw: str) -> str:
    script = stage.script
    stage.exchange.start(
        script.status or 200,
        script.content_type or SSE,
        headers=tuple(script.headers.items()),
        split_bytes=script.split_bytes,
    )
    await stage.exchange.send(raw.encode())
    stage.exchange.finish()
    return "scripted:raw"


async def _play_error(stage: Stage) -> str:
    script = stage.script
    status = script.status or (502 if script.html_error else 200)
    if script.html_error:
        content_type, body = "text/html", _HTML_ERROR
    elif script.error_body is None:
        content_type, body = JSON, orjson.dumps(error_body(f"scripted {status}", "scripted", str(status)))
    else:
        raw = script.error_body
        content_type, body = JSON, raw.encode() if isinstance(raw, str) else orjson.dumps(raw)
    headers = tuple(script.headers.items())
    if script.retry_after is not None:
        headers += (("retry-after", str(script.retry_after)),)
    await stage.exchange.whole(
        status, script.content_type or content_type, body, *headers, split_bytes=script.split_bytes
    )
    return "scripted:html_error" if script.html_error else f"scripted:status_{status}"


async def _play_whole(stage: Stage, answer: Answer) -> str:
    script = stage.script
    await stage.pace.first_content()
    await stage.pace.gaps([delta.tokens for delta in answer.deltas[1:] if delta.choice == 0])
    if script.failed_terminal:
        return await _play_body(stage, FAILURE, 0, "scripted:failed_terminal")
    outcome = OK
    if script.empty:
        outcome = "scripted:empty"
    elif script.json_not_sse and stage.call.stream:
        outcome = "scripted:json_not_sse"
    return await _play_body(stage, answers.whole(answer), answer.tokens_out, outcome)


async def _play_body(stage: Stage, payload: dict[str, Any], tokens_out: int, outcome: str) -> str:
    """A body that is not streamed; a break point (other than before the first byte) comes in its middle."""
    script = stage.script
    body = orjson.dumps(payload)
    content_type = script.content_type or JSON
    if script.bad_json_chunk is not None:
        body, outcome = body[:-1], "scripted:bad_json_chunk"
    if script.break_point is None:
        await stage.exchange.whole(200, content_type, body, split_bytes=script.split_bytes)
        stage.attempt.tokens_out = tokens_out
        return outcome
    stage.exchange.start(200, content_type, length=len(body), split_bytes=script.split_bytes)
    await stage.exchange.send(body[: len(body) // 2])
    return await _break_off(stage, script.break_point[0])


async def _play_stream(stage: Stage, answer: Answer) -> str:
    script, exchange, pace = stage.script, stage.exchange, stage.pace
    events = Events(answer)
    exchange.start(200, script.content_type or SSE, split_bytes=script.split_bytes)
    for event in events.opening():
        await exchange.send(event)
    await pace.first_content()
    broken = script.break_point
    last = len(answer.deltas)
    for sent, delta in enumerate(answer.deltas):
        if broken is not None and sent == broken[1]:
            return await _break_off(stage, broken[0])
        if sent and delta.choice == 0:
            await pace.gap(delta.tokens)
        if sent == script.bad_json_chunk:
            await exchange.send(events.torn(delta))
        await exchange.send(events.content(delta))
        stage.attempt.chunks += 1
        stage.attempt.tokens_out += delta.tokens
    if broken is not None:
        return await _break_off(stage, broken[0])
    if script.bad_json_chunk is not None and script.bad_json_chunk >= last:
        await exchange.send(events.torn(Delta(0, "", 0)))
    for event in events.closing():
        await exchange.send(event)
    exchange.finish()
    return _stream_outcome(script)


def _stream_outcome(script: Behaviour) -> str:
    if script.failed_terminal:
        return "scripted:failed_terminal"
    if script.bad_json_chunk is not None:
        return "scripted:bad_json_chunk"
    return "scripted:empty" if script.empty else OK


async def _break_off(stage: Stage, kind: BreakKind) -> str:
    if kind == "hang":
        await stage.exchange.silence()
    if kind == "reset":
        await stage.exchange.reset()
        return "scripted:reset_after_chunks"
    stage.exchange.finish()
    await stage.exchange.close()
    return "scripted:end_after_chunks"
