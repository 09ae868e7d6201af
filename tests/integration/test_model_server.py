"""The model server as a client and a benchmark rely on it: the API, scripts by try, slots, pace."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionUserMessageParam

from loadtest.model_server.pace import Pace, Slots
from loadtest.model_server.process import ModelServerProcess
from loadtest.model_server.script import PLAIN, Behaviour
from loadtest.model_server.settings import ServerSettings
from tests.wire import HOST, PATIENCE_S, chat, post, request_bytes

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASK: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "three words here"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(model="model-a", chunks=6, chunk_tokens=2) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: ModelServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as running:
        yield running


async def answer(server: ModelServerProcess, fields: object, path: str = "/v1/chat/completions") -> Any:
    return json.loads((await post(server.port, fields, path)).body)


async def test_a_stream_says_what_the_whole_answer_says(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="x", messages=ASK, n=2)
    stream = await client.chat.completions.create(
        model="x", messages=ASK, n=2, stream=True, stream_options={"include_usage": True}
    )
    texts = ["", ""]
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        assert chunk.model == "model-a"
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert usage == whole.usage
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 24)


async def test_the_same_prompt_gets_the_same_text(client: openai.AsyncOpenAI) -> None:
    texts = set()
    for prompt in ("a", "a", "b"):
        one = await client.completions.create(model="x", prompt=prompt)
        texts.add(one.choices[0].text)
        assert one.object == "text_completion"
    assert len(texts) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_cuts_and_is_counted(server: ModelServerProcess, stream: bool) -> None:
    script = {"text": "one two three four", "chunks": 2, "usage_where": "own_chunk"}
    wire = await post(server.port, chat(script, max_tokens=3, stream=stream), attempt=f"cut-{stream}")
    if stream:
        assert wire.contents == ["one two", " three"]
        assert wire.chunks[-1]["usage"]["completion_tokens"] == 3
        assert wire.chunks[-2]["choices"][0]["finish_reason"] == "length"
    else:
        body = json.loads(wire.body)
        assert body["choices"][0]["message"]["content"] == "one two three"
        assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", 3)
    record = next(record for record in server.log() if record.attempt == f"cut-{stream}")
    assert (record.tokens_in, record.tokens_out, record.stream) == (2, 3, stream)


async def test_embeddings_depend_on_the_text_alone(client: openai.AsyncOpenAI) -> None:
    packed = await client.embeddings.create(model="x", input=["a", "b"], dimensions=8)
    plain = await client.embeddings.create(model="x", input="a", dimensions=8, encoding_format="float")
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert packed.data[1].embedding != packed.data[0].embedding
    assert sum(value * value for value in plain.data[0].embedding) == pytest.approx(1)
    assert packed.usage.prompt_tokens == 2


async def test_log_probabilities_are_of_the_text(client: openai.AsyncOpenAI) -> None:
    one = await client.chat.completions.create(model="x", messages=ASK, logprobs=True, top_logprobs=3)
    assert one.choices[0].logprobs is not None
    tokens = one.choices[0].logprobs.content or []
    assert "".join(token.token for token in tokens) == one.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)
    text = await client.completions.create(model="x", prompt="a", logprobs=1)
    assert text.choices[0].logprobs is not None
    assert "".join(text.choices[0].logprobs.tokens or []) == text.choices[0].text


async def test_models_and_health(client: openai.AsyncOpenAI, server: ModelServerProcess) -> None:
    assert [model.id async for model in client.models.list()] == ["model-a"]
    async with httpx.AsyncClient(base_url=server.root_url) as plain:
        assert (await plain.get("/health")).json() == {"status": "ok"}


async def test_each_try_gets_its_behaviour_and_the_last_one_stays(server: ModelServerProcess) -> None:
    script = {"id": "thrice", "tries": [{"status": 503}, {"reset_before": True}, {"text": "done"}]}
    wires = [await post(server.port, chat(script)) for _ in range(4)]
    assert [wire.ended for wire in wires] == ["fin", "rst", "fin", "fin"]
    assert [wires[at].status for at in (0, 2, 3)] == [503, 200, 200]
    other = await post(server.port, chat({**script, "id": "another"}))
    assert other.status == 503


async def test_reset_forgets_calls_counts_and_log(server: ModelServerProcess) -> None:
    script = {"id": "once", "tries": [{"status": 503}, {"text": "done"}]}
    assert (await post(server.port, chat(script))).status == 503
    async with httpx.AsyncClient(base_url=server.root_url) as plain:
        assert (await plain.get("/log")).text
        await plain.post("/reset")
        assert (await plain.get("/log")).text == ""
        assert "model_server_attempts_total{" not in (await plain.get("/metrics")).text
    assert (await post(server.port, chat(script))).status == 503


@pytest.mark.parametrize(
    ("script", "field"),
    [
        ({"staus": 500}, "x_script.staus"),
        ({"status": "many"}, "x_script.status"),
        ({"delay_s": -1}, "x_script.delay_s"),
        ({"id": "a", "tries": [{}, {"hang_after": 1}]}, "x_script.tries.1.hang_after"),
        ({"tries": [{}]}, "x_script.id"),
        ({"reset_after_chunks": 1, "end_after_chunks": 1}, "x_script"),
        ([], "x_script"),
    ],
)
async def test_a_wrong_script_is_refused_by_name(server: ModelServerProcess, script: Any, field: str) -> None:
    wire = await post(server.port, {**chat(), "x_script": script})
    assert wire.status == 400
    assert json.loads(wire.body)["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", b"{not json", None),
        ("/v1/chat/completions", [], None),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {**chat(), "max_tokens": "all"}, "max_tokens"),
        ("/v1/completions", {"prompt": 7}, "prompt"),
        ("/v1/embeddings", {}, "input"),
    ],
)
async def test_a_wrong_body_is_a_400(
    server: ModelServerProcess, path: str, fields: Any, param: str | None
) -> None:
    wire = await post(server.port, fields, path)
    assert wire.status == 400
    assert json.loads(wire.body)["error"]["param"] == param


async def test_unknown_paths_and_methods(server: ModelServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.root_url) as plain:
        assert (await plain.get("/v1/nothing")).status_code == 404
        assert (await plain.get("/v1/chat/completions")).status_code == 405
        assert (await plain.post("/health")).status_code == 405


async def test_pipelined_requests_are_answered_in_order(server: ModelServerProcess) -> None:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    slow = request_bytes("/v1/chat/completions", chat({"text": "first", "delay_s": 0.05}), keep_alive=True)
    last = request_bytes("/v1/chat/completions", chat({"text": "second"}))
    writer.write(slow + last)
    raw = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert raw.count(b"HTTP/1.1 200 OK") == 2
    assert raw.index(b'"first"') < raw.index(b'"second"')


async def test_a_large_body_is_read(server: ModelServerProcess) -> None:
    messages = [{"role": "user", "content": "word " * 200_000}]
    assert (await answer(server, {"messages": messages}))["usage"]["prompt_tokens"] == 200_000


async def test_the_law_grows_with_tokens_and_neighbours() -> None:
    settings = ServerSettings(chunk_interval_s=0.5, tokens_per_s=10, decode_s_per_neighbour=0.01)
    slots = Slots(0)
    pace = Pace(settings, PLAIN, slots, 1, None)
    await slots.take()
    alone = pace.gap_s(2)
    await slots.take()
    await slots.take()
    assert alone == pytest.approx(0.7)
    assert pace.gap_s(2) == pytest.approx(0.74)
    assert Pace(settings, Behaviour(chunk_interval_s=3), slots, 1, None).gap_s(9) == 3


async def test_jitter_is_bounded_and_follows_its_seed() -> None:
    settings = ServerSettings(chunk_interval_s=1, jitter=0.2)
    rows = []
    for seed in (1, 1, 2):
        pace = Pace(settings, PLAIN, Slots(0), 1, random.Random(seed))
        rows.append([pace.gap_s(1) for _ in range(50)])
    assert rows[0] == rows[1] != rows[2]
    assert all(0.8 <= gap <= 1.2 for row in rows for gap in row)


async def test_two_speeds_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="give one"):
        ServerSettings(tokens_per_s=5, decode_s_per_token=0.1)
