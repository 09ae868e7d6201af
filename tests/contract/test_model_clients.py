"""What every ports.ModelClient in front of a model must do, on a real server of each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import orjson
import pytest
import pytest_asyncio

from infra.process import free_port
from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from services.core.assembly import Assembly
from services.core.fleet import BackendKind, Timeouts
from services.ports import BackendFault, ModelCall
from tests.backends_like.messages_server import KEY
from tests.backends_like.processes import MessagesServerProcess
from tests.contract.model_parts import PATIENCE_S, ModelParts, client_for, events_of, text_of

SERVERS: dict[BackendKind, type[ModelServerProcess]] = {
    "openai": ModelServerProcess,
    "anthropic": MessagesServerProcess,
}
CALLS = [
    {"id": "toolu_01", "name": "weather", "arguments": '{"city":"Zürich"}'},
    {"id": "toolu_02", "name": "time", "arguments": "{}"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(SERVERS))
async def running(request: pytest.FixtureRequest) -> AsyncIterator[tuple[BackendKind, ModelServerProcess]]:
    async with SERVERS[request.param](chunks=6) as server:
        yield request.param, server


@pytest.fixture
async def parts(running: tuple[BackendKind, ModelServerProcess]) -> AsyncIterator[ModelParts]:
    backend, server = running
    client = client_for(backend)
    yield ModelParts(backend, server, client)
    await client.aclose()


async def fault_of(parts: ModelParts, call: ModelCall) -> BackendFault:
    with pytest.raises(BackendFault) as caught:
        await events_of(parts, call)
    return caught.value


@pytest.mark.parametrize(
    "framing",
    [
        {},
        {"crlf": True},
        {"comments": True},
        {"split_bytes": 1},
        {"split_bytes": 7, "crlf": True, "comments": True},
        {"no_done": True},
        {"content_type": "text/plain"},
        {"json_not_sse": True},
    ],
)
async def test_s6_an_answer_says_the_same_however_it_is_framed(
    parts: ModelParts, framing: dict[str, Any]
) -> None:
    said = "äöü 🙂 日本語"
    events = await events_of(parts, parts.call({"text": said, **framing}))
    assert text_of(events) == said
    assembly = Assembly("chat", "id", "m")
    for event in events:
        assembly.add(event)
    assert assembly.finished
    assert assembly.usage is not None
    assert assembly.usage["completion_tokens"] == (await parts.logged("attempt-1")).tokens_out
    assert assembly.usage["total_tokens"] > assembly.usage["completion_tokens"]


@pytest.mark.parametrize("streaming", [True, False])
async def test_s7_calls_of_tools_are_the_same_whole_and_in_pieces(parts: ModelParts, streaming: bool) -> None:
    tools = [{"type": "function", "function": {"name": call["name"]}} for call in CALLS]
    call = parts.call({"text": "I look. ", "tool_calls": CALLS}, streaming=streaming, tools=tools)
    assembly = Assembly("chat", "id", "m")
    for event in await events_of(parts, call):
        assembly.add(event)
    (choice,) = assembly.answer()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    got = [
        (call["id"], call["function"]["name"], call["function"]) for call in choice["message"]["tool_calls"]
    ]
    assert [(call_id, name, orjson.loads(function["arguments"])) for call_id, name, function in got] == [
        (call["id"], call["name"], orjson.loads(call["arguments"])) for call in CALLS
    ]
    assert choice["message"]["content"] == "I look. "


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ({"status": 401}, FailureKind.KEY_REFUSED),
        ({"status": 403}, FailureKind.KEY_REFUSED),
        ({"status": 404}, FailureKind.NOT_FOUND),
        ({"status": 400}, FailureKind.BAD_REQUEST),
        ({"status": 413}, FailureKind.TOO_LONG),
        ({"status": 429}, FailureKind.RATE_LIMITED),
        ({"status": 529}, FailureKind.OVERLOADED),
        ({"status": 500}, FailureKind.SERVER_ERROR),
        ({"html_error": True}, FailureKind.SERVER_ERROR),
        ({"html_error": True, "status": 200}, FailureKind.BAD_ANSWER),
        ({"status": 200, "error_body": "nothing of use"}, FailureKind.BAD_ANSWER),
        ({"status": 307}, FailureKind.BAD_ANSWER),
        ({"bad_json_chunk": 0}, FailureKind.BAD_ANSWER),
        ({"bad_json_chunk": 2}, FailureKind.BAD_ANSWER),
        ({"reset_before": True}, FailureKind.RESET),
        ({"reset_after_chunks": 2}, FailureKind.INTERRUPTED),
    ],
)
async def test_s3_every_failure_has_its_kind(
    parts: ModelParts, script: dict[str, Any], kind: FailureKind
) -> None:
    fault = await fault_of(parts, parts.call(script))
    assert fault.kind is kind
    assert fault.message
    assert "cloudflare" not in fault.message
    assert "<" not in fault.message


@pytest.mark.parametrize("running", ["anthropic"], indirect=True)
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"object": "of another API"}, FailureKind.BAD_ANSWER),
        ({"type": "error", "error": {"type": "billing_error", "message": "pay"}}, FailureKind.KEY_REFUSED),
        (
            {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to ..."}},
            FailureKind.KEY_REFUSED,
        ),
    ],
)
async def test_what_only_anthropic_says_is_our_fault_or_no_answer(
    parts: ModelParts, body: dict[str, Any], kind: FailureKind
) -> None:
    fault = await fault_of(parts, parts.call({"status": 200, "error_body": body}))
    assert fault.kind is kind
    assert "balance" not in fault.message


async def test_s2_an_error_within_the_stream_comes_behind_what_was_said(parts: ModelParts) -> None:
    heard: list[dict[str, Any]] = []

    async def hear() -> None:
        async for batch in parts.client.events(parts.call({"failed_terminal": True, "chunks": 4})):
            heard.extend(batch)

    with pytest.raises(BackendFault) as caught:
        await hear()
    assert caught.value.kind in (FailureKind.OVERLOADED, FailureKind.SERVER_ERROR)
    assert text_of(heard)


async def test_s2_a_stream_that_just_ends_is_not_finished(parts: ModelParts) -> None:
    assembly = Assembly("chat", "id", "m")
    for event in await events_of(parts, parts.call({"end_after_chunks": 2})):
        assembly.add(event)
    assert assembly.has_content
    assert not assembly.finished


async def test_r8_neither_key_nor_words_about_it_are_shown(parts: ModelParts) -> None:
    error = {"error": {"type": "authentication_error", "message": f"invalid x-api-key {KEY}"}}
    refused = await fault_of(parts, parts.call({"status": 401, "error_body": error}))
    error = {"error": {"type": "invalid_request_error", "message": f"bad field near {KEY} or sk-ant-other-1"}}
    told = await fault_of(parts, parts.call({"status": 400, "error_body": error}))
    assert told.message.startswith("bad field near")
    assert "invalid" not in refused.message
    for fault in (refused, told):
        assert KEY not in f"{fault} {fault.message} {fault.__dict__}"
        assert "sk-" not in fault.message


@pytest.mark.parametrize("as_date", [False, True])
async def test_r2_retry_after_in_seconds_or_as_a_date(parts: ModelParts, as_date: bool) -> None:
    wait = formatdate(time.time() + 60, usegmt=True) if as_date else 60
    fault = await fault_of(parts, parts.call({"status": 429, "retry_after": wait}))
    assert fault.retry_after_s is not None
    assert 40 < fault.retry_after_s <= 61


async def test_s4_connect_and_first_byte_are_bounded(parts: ModelParts) -> None:
    short = Timeouts(connect_s=0.2, first_token_s=0.2, idle_s=0.2, total_s=0.4)
    silent = await fault_of(parts, parts.call({"delay_s": 30}, attempt="mute", timeouts=short))
    assert silent.kind is FailureKind.FIRST_TOKEN_TIMEOUT
    assert (await parts.logged("mute")).outcome == "disconnected"
    mute = await fault_of(parts, parts.call({"hang_after_chunks": 1}, timeouts=short))
    assert mute.kind is FailureKind.IDLE_TIMEOUT
    nobody = await fault_of(parts, parts.call(url=f"http://127.0.0.1:{free_port()}"))
    assert nobody.kind is FailureKind.UNREACHABLE


@pytest.mark.parametrize(("how", "streaming"), [("cancel", True), ("cancel", False), ("close", True)])
async def test_s5_breaking_off_closes_the_connection_at_once(
    parts: ModelParts, how: str, streaming: bool
) -> None:
    attempt = f"{how}-{streaming}"
    call = parts.call({"hang_after_chunks": 1}, streaming=streaming, attempt=attempt)
    if how == "close":
        stream = parts.client.events(call)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined] # a generator, which the port does not promise
    else:
        reading = asyncio.create_task(events_of(parts, call))
        await parts.at_work(attempt)
        reading.cancel()
        await asyncio.wait({reading}, timeout=PATIENCE_S)
        assert reading.cancelled()
    assert (await parts.logged(attempt)).outcome == "disconnected"


async def test_a_large_answer_comes_whole(parts: ModelParts) -> None:
    text = "word " * 20_000
    for streaming in (True, False):
        call = parts.call({"text": text}, streaming=streaming, max_tokens=200_000)
        assert text_of(await events_of(parts, call)) == text


async def test_an_event_beyond_all_bounds_is_no_answer(parts: ModelParts) -> None:
    call = parts.call({"text": "x" * (17 * 1024 * 1024), "chunks": 1})
    assert (await fault_of(parts, call)).kind is FailureKind.BAD_ANSWER


async def test_a_probe_says_whether_a_server_answers(parts: ModelParts) -> None:
    assert await parts.client.answers(parts.server.root_url)
    assert not await parts.client.answers(f"http://127.0.0.1:{free_port()}")
