"""The local model server: what a worker relies on when it talks to llama.cpp."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from infra.llama.process import LlamaServer
from infra.llama.settings import LlamaSettings
from infra.process import ChildProcess, ProcessFailedError

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest_asyncio.fixture
async def client(llama_server: LlamaServer) -> AsyncIterator[httpx.AsyncClient]:
    # Once in some hundred streams the server closes a kept-alive connection instead of answering on it again.
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=llama_server.origin, limits=fresh, trust_env=False) as client:
        client.timeout = 60
        yield client


def asking(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 24, **more}


async def streamed(client: httpx.AsyncClient, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end with [DONE]."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json={**body, **options}) as response:
        assert response.status_code == 200
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def busy_slots(client: httpx.AsyncClient) -> int:
    return sum(slot["is_processing"] for slot in (await client.get("/slots")).json())


async def until_idle(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while await busy_slots(client):
            await asyncio.sleep(0.01)


async def hang_up_after_first_chunk(client: httpx.AsyncClient, body: Mapping[str, Any]) -> int:
    """How many slots worked when the connection was dropped."""
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        await anext(response.aiter_lines())
        return await busy_slots(client)


async def test_answers_are_about_the_question(client: httpx.AsyncClient) -> None:
    """Two questions get two answers, and the answers are the model's own."""
    paris = text_of(await streamed(client, asking("What is the capital of France?")))
    fruits = text_of(await streamed(client, asking("Name three fruits.")))
    assert "Paris" in paris
    assert "apple" in fruits.lower()


async def test_a_stream_ends_with_usage_that_fits_its_chunks(client: httpx.AsyncClient) -> None:
    chunks = await streamed(client, asking("Name three fruits.", ignore_eos=True))
    usage = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == []
    assert usage["completion_tokens"] == 24
    assert usage["prompt_tokens"] + 24 == usage["total_tokens"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


async def test_each_choice_of_a_stream_has_a_usage_of_its_own(client: httpx.AsyncClient) -> None:
    """With n > 1 the usage is the sum of several chunks, and content may follow the first of them."""
    chunks = await streamed(client, asking("Name three fruits.", n=2, max_tokens=5, ignore_eos=True))
    usages = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")]
    assert usages == [5, 5]
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1}


async def test_a_hang_up_while_it_writes_frees_the_slot(client: httpx.AsyncClient) -> None:
    """The answer would take half a minute; the slot is free long before."""
    body = asking("Tell a long story.", max_tokens=1900, ignore_eos=True)
    assert await hang_up_after_first_chunk(client, body) == 1
    await until_idle(client)
    assert (await client.get("/metrics")).status_code == 200


async def test_a_hang_up_while_it_reads_frees_the_slot(client: httpx.AsyncClient) -> None:
    """With return_progress it writes, and so notices, before the prompt is read, however busy it is."""
    words = " ".join(f"word{n}" for n in range(400))
    assert await hang_up_after_first_chunk(client, asking(words, return_progress=True)) == 1
    await until_idle(client)
    read = max(slot.get("n_prompt_tokens", 0) for slot in (await client.get("/slots")).json())
    assert read < 400  # it has stopped reading: the prompt is longer than its 400 words


async def test_a_prompt_over_the_context_is_refused_before_it_starts(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json=asking("word " * 3000, stream=True))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 2048


async def test_tool_calls_are_parsed(client: httpx.AsyncClient) -> None:
    """So small a model seldom chooses a tool: a bias on the call's first token chooses for it."""
    first = (await client.post("/tokenize", json={"content": "<tool_call>"})).json()["tokens"][0]
    body = asking("What is the weather in Paris?", tools=[WEATHER_TOOL], max_tokens=40)
    body |= {"logit_bias": {str(first): 8}}
    message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
    call = message["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


async def test_log_probabilities_are_given(client: httpx.AsyncClient) -> None:
    body = asking("Say hi.", logprobs=True, top_logprobs=2, max_tokens=2, ignore_eos=True)
    choice = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]] == [2, 2]


async def test_the_alias_is_the_models_name(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["smollm2"]
    answer = (await client.post("/v1/chat/completions", json=asking("Hi", max_tokens=1))).json()
    assert answer["model"] == "smollm2"


async def test_sigterm_ends_it_even_while_it_streams_and_it_starts_again(tmp_path: Path) -> None:
    server = LlamaServer(LlamaSettings(slots=1, context_per_slot=512), log_path=tmp_path / "log")
    async with server, httpx.AsyncClient(base_url=server.origin, trust_env=False, timeout=60) as client:
        process = psutil.Process(server.pid)
        body = asking("Tell a long story.", max_tokens=400, ignore_eos=True, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            await anext(response.aiter_lines())
            await server.stop()
        assert not process.is_running()
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        await server.start()
        assert (await client.get("/health")).status_code == 200
    assert not server.running


async def test_it_writes_its_port_and_sigterm_is_a_clean_exit(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    process = ChildProcess("model server", tmp_path / "log")
    process.spawn([sys.executable, "-m", "infra.llama", "--port-file", str(port_file), "--slots", "1"])
    try:
        async with asyncio.timeout(60):
            while not port_file.exists():
                assert process.running, process.log_tail()
                await asyncio.sleep(0.02)
        async with httpx.AsyncClient(trust_env=False) as client:
            health = await client.get(f"http://127.0.0.1:{port_file.read_text()}/health")
        assert health.json() == {"status": "ok"}
        assert await process.stop(grace_s=10) == 0
    finally:
        await process.kill()


async def test_missing_weights_are_named(tmp_path: Path) -> None:
    server = LlamaServer(LlamaSettings(model=str(tmp_path / "none.gguf")), log_path=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match=r"no weights at .*none\.gguf"):
        await server.start()
    assert not server.running


def test_a_missing_wheel_names_the_extra() -> None:
    """An interpreter without site-packages is a machine where nothing was installed."""
    command = [sys.executable, "-S", "-m", "infra.llama"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "chimera-fleet[local]" in result.stderr
