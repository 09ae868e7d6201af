"""The OpenAI backend on a real server: every oddity is an answer or a fault of the table, never a secret."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import formatdate
from typing import Any

import orjson
import pytest
import pytest_asyncio

from infra.process import free_port
from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from services.adapters.model_backends.openai import OpenAIBackend
from services.core.fleet import Timeouts
from services.ports import BackendFault, ModelCall

KEY = "sk-very-secret-1234567890"
PATIENCE_S = 20.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=6) as running:
        yield running


@pytest.fixture
async def backend() -> AsyncIterator[OpenAIBackend]:
    made = OpenAIBackend(slots=4, api_key=KEY)
    yield made
    await made.aclose()


def call(
    url: str,
    script: Mapping[str, Any] | None = None,
    *,
    streaming: bool = True,
    attempt: str = "attempt-1",
    timeouts: Timeouts | None = None,
) -> ModelCall:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if streaming:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if script is not None:
        body["x_script"] = dict(script)
    limits = timeouts or Timeouts(connect_s=1, first_token_s=5, idle_s=5, total_s=10)
    return ModelCall(url, "/v1/chat/completions", orjson.dumps(body), attempt, streaming, limits)


async def events_of(backend: OpenAIBackend, made: ModelCall) -> list[dict[str, Any]]:
    return [event async for batch in backend.events(made) for event in batch]


async def fault_of(backend: OpenAIBackend, made: ModelCall) -> BackendFault:
    with pytest.raises(BackendFault) as caught:
        await events_of(backend, made)
    return caught.value


def text(events: list[dict[str, Any]]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())
    )


async def logged(server: ModelServerProcess, attempt: str) -> AttemptRecord:
    async with asyncio.timeout(PATIENCE_S):
        while not (found := [record for record in server.log() if record.attempt == attempt]):
            await asyncio.sleep(0.02)
    return found[0]


@pytest.mark.parametrize(
    "framing",
    [
        {},
        {"crlf": True},
        {"comments": True},
        {"split_bytes": 1},
        {"split_bytes": 7, "crlf": True, "comments": True},
        {"no_done": True},
        {"role_only_first": True},
        {"double_finish": True},
        {"content_type": "text/plain"},
    ],
)
async def test_s6_a_stream_says_the_same_however_it_is_framed(
    server: ModelServerProcess, backend: OpenAIBackend, framing: dict[str, Any]
) -> None:
    said = "äöü 🙂 日本語"
    events = await events_of(backend, call(server.root_url, {"text": said, **framing}))
    assert text(events) == said
    assert events[-1]["usage"]["completion_tokens"] > 0


async def test_the_attempt_is_the_request_id_and_an_unstreamed_answer_is_one_event(
    server: ModelServerProcess, backend: OpenAIBackend
) -> None:
    for made in (
        call(server.root_url, {"text": "whole"}, streaming=False, attempt="whole-1"),
        call(server.root_url, {"text": "whole", "json_not_sse": True}, attempt="whole-2"),
    ):
        (event,) = await events_of(backend, made)
        assert event["choices"][0]["message"]["content"] == "whole"
        assert (await logged(server, made.attempt)).attempt == made.attempt


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ({"status": 401}, FailureKind.KEY_REFUSED),
        ({"status": 403}, FailureKind.KEY_REFUSED),
        ({"status": 404}, FailureKind.NOT_FOUND),
        ({"status": 400}, FailureKind.BAD_REQUEST),
        ({"status": 422}, FailureKind.BAD_REQUEST),
        ({"status": 413}, FailureKind.TOO_LONG),
        ({"status": 429}, FailureKind.RATE_LIMITED),
        ({"status": 503}, FailureKind.OVERLOADED),
        ({"status": 529}, FailureKind.OVERLOADED),
        ({"status": 500}, FailureKind.SERVER_ERROR),
        ({"html_error": True}, FailureKind.SERVER_ERROR),
        ({"html_error": True, "status": 200}, FailureKind.BAD_ANSWER),
        ({"status": 200, "error_body": "nothing of use"}, FailureKind.BAD_ANSWER),
        ({"status": 200, "error_body": {"error": {"type": "overloaded_error"}}}, FailureKind.OVERLOADED),
        ({"status": 200, "error_body": {"error": {"code": 429}}}, FailureKind.RATE_LIMITED),
        ({"status": 307}, FailureKind.BAD_ANSWER),
        ({"failed_terminal": True}, FailureKind.SERVER_ERROR),
        ({"bad_json_chunk": 0}, FailureKind.BAD_ANSWER),
        ({"bad_json_chunk": 2}, FailureKind.BAD_ANSWER),
        ({"reset_before": True}, FailureKind.RESET),
        ({"reset_after_chunks": 2}, FailureKind.INTERRUPTED),
        (
            {"status": 400, "error_body": {"error": {"message": "x", "code": "context_length_exceeded"}}},
            FailureKind.TOO_LONG,
        ),
        (
            {"status": 400, "error_body": {"error": {"message": "x", "type": "exceed_context_size_error"}}},
            FailureKind.TOO_LONG,
        ),
        (
            {"status": 400, "error_body": {"message": "maximum context length is 4096 tokens"}},
            FailureKind.TOO_LONG,
        ),
    ],
)
async def test_s3_every_failure_has_its_kind(
    server: ModelServerProcess, backend: OpenAIBackend, script: dict[str, Any], kind: FailureKind
) -> None:
    fault = await fault_of(backend, call(server.root_url, script))
    assert fault.kind is kind
    assert fault.message


async def test_r8_the_key_is_never_shown_and_our_key_is_no_callers_fault(
    server: ModelServerProcess, backend: OpenAIBackend
) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    refused = await fault_of(backend, call(server.root_url, {"status": 401, "error_body": error}))
    assert (refused.code, refused.status) == (None, 401)
    assert "Incorrect" not in refused.message
    error = {"error": {"message": f"bad field near Bearer {KEY} and sk-other-key-123456", "param": "n"}}
    told = await fault_of(backend, call(server.root_url, {"status": 400, "error_body": error}))
    assert told.param == "n"
    assert told.message.startswith("bad field near")
    for fault in (refused, told):
        assert KEY not in f"{fault} {fault.message} {fault.__dict__}"
        assert "sk-" not in fault.message


@pytest.mark.parametrize("as_date", [False, True])
async def test_r2_retry_after_in_seconds_or_as_a_date(
    server: ModelServerProcess, backend: OpenAIBackend, as_date: bool
) -> None:
    wait = formatdate(time.time() + 60, usegmt=True) if as_date else 60
    fault = await fault_of(backend, call(server.root_url, {"status": 429, "retry_after": wait}))
    assert fault.retry_after_s is not None
    assert 40 < fault.retry_after_s <= 61


async def test_s4_connect_and_first_byte_are_bounded(
    server: ModelServerProcess, backend: OpenAIBackend
) -> None:
    short = Timeouts(connect_s=0.2, first_token_s=0.2, idle_s=0.2, total_s=0.4)
    silent = await fault_of(backend, call(server.root_url, {"delay_s": 30}, attempt="mute", timeouts=short))
    assert silent.kind is FailureKind.FIRST_TOKEN_TIMEOUT
    assert (await logged(server, "mute")).outcome == "disconnected"
    mute = await fault_of(backend, call(server.root_url, {"hang_after_chunks": 1}, timeouts=short))
    assert mute.kind is FailureKind.IDLE_TIMEOUT
    nobody = await fault_of(backend, call(f"http://127.0.0.1:{free_port()}"))
    assert nobody.kind is FailureKind.UNREACHABLE
    assert (await fault_of(backend, call("http://no-such-host.invalid"))).kind is FailureKind.UNREACHABLE


@pytest.mark.parametrize(("how", "streaming"), [("cancel", True), ("cancel", False), ("close", True)])
async def test_s5_breaking_off_closes_the_connection_at_once(
    server: ModelServerProcess, backend: OpenAIBackend, how: str, streaming: bool
) -> None:
    attempt = f"{how}-{streaming}"
    made = call(server.root_url, {"hang_after_chunks": 1}, streaming=streaming, attempt=attempt)
    stream = backend.events(made)
    if how == "close":
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined] # a generator, which the port does not promise
    else:
        reading = asyncio.create_task(events_of(backend, made))
        async with asyncio.timeout(PATIENCE_S):
            while not [record for record in await server.running_attempts() if record.attempt == attempt]:
                await asyncio.sleep(0.02)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
    assert (await logged(server, attempt)).outcome == "disconnected"


async def test_a_connection_is_kept_and_a_server_that_came_back_is_reached(backend: OpenAIBackend) -> None:
    async with ModelServerProcess(chunks=2) as server:
        for number in range(5):
            assert text(await events_of(backend, call(server.root_url, attempt=f"a{number}")))
        assert backend.connections.open_count(server.root_url) == 1
        await server.kill()
        await server.start()
        # the kept connection is dead by now: that must cost no try
        assert text(await events_of(backend, call(server.root_url, attempt="after")))
        assert len([record for record in server.log() if record.attempt == "after"]) == 1


async def test_probe_says_whether_a_server_answers(
    server: ModelServerProcess, backend: OpenAIBackend
) -> None:
    assert await backend.answers(server.root_url)
    assert not await backend.answers(f"http://127.0.0.1:{free_port()}")
