"""The scripted faults of the model server, byte for byte: a fault that is not what it says proves nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from loadtest.model_server.process import ModelServerProcess
from tests.wire import Wire, chat, post

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "Grüße 👩‍🚀 from 東京 🎉!"
CALLS = [
    {"id": "call_a", "name": "weather", "arguments": '{"city": "東京", "days": 3}'},
    {"id": "call_b", "name": "clock", "arguments": '{"zone": "UTC"}'},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(model="model-a", chunks=4) as running:
        yield running


async def streamed(server: ModelServerProcess, attempt: str | None = None, **script: Any) -> Wire:
    return await post(server.port, chat(script, stream=True), attempt=attempt)


async def whole(server: ModelServerProcess, attempt: str | None = None, **script: Any) -> Wire:
    return await post(server.port, chat(script), attempt=attempt)


def outcome(server: ModelServerProcess, attempt: str) -> str:
    return next(record.outcome for record in server.log() if record.attempt == attempt)


async def test_a_stream_is_these_bytes(server: ModelServerProcess) -> None:
    wire = await streamed(server, text="Hi you", usage_where="own_chunk")
    first = wire.chunks[0]
    stem = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        '"model":"model-a","system_fingerprint":"model-server","choices":'
    )
    tails = [
        '[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}',
        '[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}],"usage":null}',
        '[{"index":0,"delta":{"content":" you"},"logprobs":null,"finish_reason":null}],"usage":null}',
        '[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}',
        '[],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}',
    ]
    events = [f"data: {stem}{tail}\n\n".encode() for tail in tails] + [b"data: [DONE]\n\n"]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    assert wire.after_head == framed + b"0\r\n\r\n"
    assert wire.ended == "fin"


async def test_framing_follows_the_script(server: ModelServerProcess) -> None:
    wire = await streamed(
        server,
        text="Hi",
        crlf=True,
        comments=True,
        role_only_first=True,
        double_finish=True,
        no_done=True,
    )
    events = wire.body.split(b"\r\n\r\n")
    assert events[-1] == b""
    assert events[0::2] == [b": keepalive"] * 4 + [b""]
    assert b"\n" not in wire.body.replace(b"\r\n", b"")
    deltas = [chunk["choices"][0]["delta"] for chunk in wire.chunks]
    assert deltas == [{"role": "assistant"}, {"content": "Hi"}, {}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in wire.chunks] == [None, None, "stop", "stop"]
    assert "[DONE]" not in wire.data
    assert wire.complete


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_characters_and_events_are_split_between_writes(server: ModelServerProcess, size: int) -> None:
    wire = await streamed(server, text=TEXT, split_bytes=size)
    assert max(map(len, wire.frames)) == size
    assert "".join(wire.contents) == TEXT
    assert any("\ufffd" in frame.decode(errors="replace") for frame in wire.frames)
    body = json.loads((await whole(server, text=TEXT, split_bytes=size)).body)
    assert body["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("chunks", [1, 2, 5, 100])
async def test_a_text_in_any_number_of_chunks_is_the_text(server: ModelServerProcess, chunks: int) -> None:
    wire = await streamed(server, text=TEXT, chunks=chunks)
    assert len(wire.contents) == min(chunks, len(TEXT))
    assert "".join(wire.contents) == TEXT


async def test_drip_sends_single_characters(server: ModelServerProcess) -> None:
    wire = await streamed(server, text="drip 🎉", drip_s=0.001)
    assert wire.contents == list("drip 🎉")


@pytest.mark.parametrize("send", [streamed, whole])
async def test_reset_before_any_byte(server: ModelServerProcess, send: Any) -> None:
    wire = await send(server, attempt=f"reset-{send.__name__}", reset_before=True)
    assert (wire.raw, wire.ended) == (b"", "rst")
    assert outcome(server, f"reset-{send.__name__}") == "scripted:reset_before"


@pytest.mark.parametrize("after", [0, 2, 4, 9])
async def test_reset_after_chunks(server: ModelServerProcess, after: int) -> None:
    wire = await streamed(server, attempt=f"cut-{after}", reset_after_chunks=after)
    assert (len(wire.contents), wire.ended, wire.complete) == (min(after, 4), "rst", False)
    record = next(record for record in server.log() if record.attempt == f"cut-{after}")
    assert (record.outcome, record.chunks) == ("scripted:reset_after_chunks", min(after, 4))
    assert record.tokens_out == min(after, 4)


@pytest.mark.parametrize("after", [0, 2, 4])
async def test_a_stream_ends_cleanly_without_its_terminal(server: ModelServerProcess, after: int) -> None:
    wire = await streamed(server, end_after_chunks=after)
    assert (len(wire.contents), wire.ended, wire.complete) == (after, "fin", True)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in wire.chunks)
    assert "[DONE]" not in wire.data


@pytest.mark.parametrize(("field", "ended"), [("reset_after_chunks", "rst"), ("end_after_chunks", "fin")])
async def test_an_unstreamed_body_breaks_in_its_middle(
    server: ModelServerProcess, field: str, ended: str
) -> None:
    wire = await post(server.port, chat({field: 1}))
    assert (wire.ended, wire.complete) == (ended, False)
    assert wire.body.startswith(b'{"id":')


@pytest.mark.parametrize("retry_after", [7, "Wed, 21 Oct 2065 07:28:00 GMT"])
async def test_a_status_with_retry_after(server: ModelServerProcess, retry_after: int | str) -> None:
    wire = await streamed(server, attempt=f"429-{retry_after}", status=429, retry_after=retry_after)
    assert wire.status == 429
    assert f"retry-after: {retry_after}".encode() in wire.head.split(b"\r\n")
    assert set(json.loads(wire.body)["error"]) == {"message", "type", "param", "code"}
    assert outcome(server, f"429-{retry_after}") == "scripted:status_429"


async def test_an_error_body_is_sent_as_it_is(server: ModelServerProcess) -> None:
    raw = await whole(server, status=500, error_body="{half: ü", content_type="text/plain")
    assert (raw.status, raw.body) == (500, "{half: ü".encode())
    assert b"content-type: text/plain" in raw.head
    assert json.loads((await whole(server, status=400, error_body={"detail": [1]})).body) == {"detail": [1]}
    html = await streamed(server, html_error=True)
    assert (html.status, html.body[:6]) == (502, b"<html>")
    assert b"content-type: text/html" in html.head


@pytest.mark.parametrize("finish", [None, "stop", "length"])
async def test_an_empty_terminal(server: ModelServerProcess, finish: str | None) -> None:
    wire = await streamed(server, attempt=f"empty-{finish}", empty=True, finish_reason=finish)
    assert (wire.status, wire.contents) == (200, [])
    assert wire.chunks[-1]["choices"][0]["finish_reason"] == finish
    assert outcome(server, f"empty-{finish}") == "scripted:empty"
    body = json.loads((await whole(server, empty=True, finish_reason=finish)).body)
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("", finish)
    assert body["usage"]["completion_tokens"] == 0


async def test_a_failed_terminal(server: ModelServerProcess) -> None:
    before = await streamed(server, failed_terminal=True)
    assert (before.status, before.contents, before.data[-1]) == (200, [], "[DONE]")
    assert before.chunks[-1]["error"]["code"] == "engine_failed"
    behind = await streamed(server, failed_terminal=True, chunks=2, no_done=True)
    assert (len(behind.contents), list(behind.chunks[-1])) == (2, ["error"])
    assert json.loads((await whole(server, failed_terminal=True)).body)["error"]["code"] == "engine_failed"


async def test_json_where_a_stream_was_asked(server: ModelServerProcess) -> None:
    wire = await streamed(server, attempt="json", json_not_sse=True)
    assert b"content-type: application/json" in wire.head
    assert json.loads(wire.body)["object"] == "chat.completion"
    assert outcome(server, "json") == "scripted:json_not_sse"


@pytest.mark.parametrize(("script", "before"), [(True, 1), (0, 0), (3, 3), (50, 4)])
async def test_one_event_is_torn(server: ModelServerProcess, script: int, before: int) -> None:
    wire = await streamed(server, bad_json_chunk=script)
    torn = [at for at, data in enumerate(wire.data) if not data.endswith(("}", "[DONE]"))]
    assert torn == [1 + before]
    with pytest.raises(json.JSONDecodeError):
        json.loads(wire.data[torn[0]])
    with pytest.raises(json.JSONDecodeError):
        json.loads((await whole(server, bad_json_chunk=True)).body)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("none", []),
        ("own_chunk", [(False, 3)]),
        ("zero", [(False, 0)]),
        ("last_with_choices", [(True, 3)]),
        ("every_chunk", [(True, 0), (True, 1), (True, 2), (True, 3), (True, 3)]),
    ],
)
async def test_usage_is_where_the_script_puts_it(
    server: ModelServerProcess, where: str, expected: list[tuple[bool, int]]
) -> None:
    wire = await streamed(server, text="one two three", usage_where=where)
    carriers = [chunk for chunk in wire.chunks if chunk.get("usage")]
    assert [(bool(c["choices"]), c["usage"]["completion_tokens"]) for c in carriers] == expected


async def test_parallel_calls_are_the_same_whole_and_streamed(server: ModelServerProcess) -> None:
    wire = await streamed(server, tool_calls=CALLS, usage_where="own_chunk")
    rebuilt: dict[int, dict[str, str]] = {}
    order: list[int] = []
    for chunk in wire.chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", []):
                order.append(delta["index"])
                call = rebuilt.setdefault(
                    delta["index"],
                    {"id": delta.get("id"), "name": delta["function"].get("name"), "arguments": ""},
                )
                call["arguments"] += delta["function"]["arguments"]
    assert [rebuilt[index] for index in (0, 1)] == CALLS
    assert order[:6] == [0, 1, 0, 1, 0, 1]
    body = json.loads((await whole(server, tool_calls=CALLS)).body)
    calls = body["choices"][0]["message"]["tool_calls"]
    assert [{"id": call["id"], **call["function"]} for call in calls] == CALLS
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"] == wire.chunks[-1]["usage"]
