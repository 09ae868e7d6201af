"""Pools before what is not OpenAI's: Anthropic's API, a service, tools over MCP; all separate processes."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import openai
import orjson
import pytest
import pytest_asyncio
import uuid_utils
from aiokafka import AIOKafkaProducer
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from infra.launcher import project_environment
from loadtest.stage import Stage, StageOptions
from schemas.topics import TopicNames
from tests.backends_like.messages_server import KEY
from tests.backends_like.processes import McpServerProcess, MessagesServerProcess, ToolServiceProcess
from tests.e2e.staged import Scripted, new_marker, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
POOLS = """version: 1
prefix: {prefix}
partitions: 4
pools:
  - name: claude
    model: claude-like
    backend: anthropic
    base_url: {claude}
    api_key: env:CLAUDE_LIKE_KEY
    capabilities: [chat, tools]
    features: [tools, vision, json_schema]
    context_tokens: 200000
    price: {{input_per_mtok: 1.0, cached_per_mtok: 0.1, output_per_mtok: 2.0}}
  - name: service
    model: adder
    backend: http
    base_url: {service}
    capabilities: [tools]
    price: {{per_request: 0.5}}
  - name: pipes
    model: sdk-tools
    backend: mcp
    mcp: {{command: {command}, env: {{PYTHONPATH: "{path}", TOOL_KEY: "env:PIPED_TOOL_KEY"}}}}
    capabilities: [tools]
    price: {{per_request: 0.25}}
  - name: url
    model: sdk-tools-at-a-url
    backend: mcp
    base_url: {url}
    capabilities: [tools]
"""
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
HIDDEN = "piped-secret-1234567890"
SAID = "Four legs, 🐉 one tail, and naïve eyes."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    folder = tmp_path_factory.mktemp("other-backends")
    async with AsyncExitStack() as stack:
        claude = await stack.enter_async_context(MessagesServerProcess(chunks=6))
        service = await stack.enter_async_context(ToolServiceProcess())
        url = await stack.enter_async_context(McpServerProcess(folder, {}))
        pools = POOLS.format(
            prefix=f"o{new_marker()[2:10]}.",
            claude=claude.base_url,
            service=service.tool_url,
            url=url.tool_url,
            command=json.dumps([sys.executable, "-m", "tests.backends_like.mcp_server"]),
            path=project_environment()["PYTHONPATH"],
        )
        keys = {"CLAUDE_LIKE_KEY": KEY, "PIPED_TOOL_KEY": HIDDEN}
        stage = Stage(StageOptions(folder, pools, "local", environment=keys))
        yield Scripted(await stack.enter_async_context(stage), claude)


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: Scripted) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=fleet.base_url, api_key="unused", http_client=http) as made:
        yield made


def asking(script: dict[str, Any], marker: str = "") -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": json.dumps({"x_script": script, "x_marker": marker})}]


async def test_a_streamed_chat_of_an_openai_client_is_answered_by_anthropics_api(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    stream = await client.chat.completions.create(
        model="claude",
        messages=asking({"text": SAID, "crlf": True, "comments": True, "split_bytes": 5}, marker),
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-request-id": marker},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert {chunk.model for chunk in chunks} == {"claude-like"}
    (attempt,) = await fleet.ended(marker)
    used = chunks[-1].usage
    assert used is not None
    assert used.prompt_tokens_details is not None
    assert used.prompt_tokens_details.cached_tokens == 3
    (row,) = await fleet.ledger(marker)
    assert (row["attempt"], row["estimated"]) == (attempt.attempt, False)
    assert (row["input_tokens"], row["output_tokens"]) == (used.prompt_tokens, attempt.tokens_out)
    cost = ((used.prompt_tokens - 3) * 1.0 + 3 * 0.1 + attempt.tokens_out * 2.0) / 1e6
    assert row["cost_usd"] == pytest.approx(cost)


async def test_tools_are_called_and_their_results_go_back(client: openai.AsyncOpenAI) -> None:
    calls = [
        {"id": "toolu_a", "name": "weather", "arguments": '{"city":"Zürich"}'},
        {"id": "toolu_b", "name": "weather", "arguments": '{"city":"東京"}'},
    ]
    messages = asking({"text": "I look.", "tool_calls": calls})
    async with client.chat.completions.stream(model="claude", messages=messages, tools=[WEATHER]) as stream:
        final = (await stream.get_final_completion()).choices[0]
    assert final.finish_reason == "tool_calls"
    got = final.message.tool_calls or []
    assert [(call.id, json.loads(call.function.arguments)) for call in got] == [
        (call["id"], json.loads(call["arguments"])) for call in calls
    ]
    said: Any = final.message.to_dict()
    said.pop("parsed", None)
    results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in got]
    messages = [*messages, said, *results, *asking({"text": "It rains."})]
    answer = await client.chat.completions.create(model="claude", messages=messages, tools=[WEATHER])
    assert answer.choices[0].message.content == "It rains."


async def test_s1_an_overloaded_try_is_followed_by_another_unseen(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    script = {
        "id": marker,
        "tries": [{"status": 529}, {"reset_after_chunks": 0}, {"text": SAID}],
    }
    stream = await client.chat.completions.create(
        model="claude",
        messages=asking(script, marker),
        stream=True,
        extra_headers={"x-request-id": marker},
    )
    joined = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert joined == SAID
    assert len(await fleet.ledger(marker, 2)) >= 2


@pytest.mark.parametrize("asked", [{"n": 2}, {"logprobs": True}])
async def test_what_the_api_has_not_is_refused_by_name(
    client: openai.AsyncOpenAI, asked: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="claude", messages=asking({}), **asked)
    assert refused.value.param == next(iter(asked))


async def test_no_model_does_what_its_backend_has_not(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="claude lacks tasks of kind completion"):
        await client.completions.create(model="claude", prompt="x")
    with pytest.raises(openai.BadRequestError, match="service lacks tasks of kind chat"):
        await client.chat.completions.create(model="service", messages=asking({}))


async def submitted(fleet: Scripted, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The row of `tasks` of a tool task, once it has ended."""
    task_id = str(uuid_utils.uuid7())
    task = {"task_id": task_id, "kind": "tool", "keep_answer": True, "body": {"inline": body}, **more}
    stage = fleet.stage
    producer = AIOKafkaProducer(bootstrap_servers=stage.bootstrap_servers, acks="all")
    await producer.start()
    try:
        topic = TopicNames(stage.fleet.prefix).submissions
        headers = [("type", b"SubmitTask"), ("v", b"1")]
        await producer.send_and_wait(topic, json.dumps(task).encode(), task_id.encode(), headers=headers)
    finally:
        await producer.stop()

    async def look() -> dict[str, Any] | None:
        engine = create_async_engine(stage.database_url)
        try:
            async with engine.connect() as connection:
                found = await connection.execute(
                    text("SELECT * FROM tasks WHERE task_id = :id"), {"id": task_id}
                )
                return next((dict(row) for row in found.mappings()), None)
        finally:
            await engine.dispose()

    return await until(look, f"the row of {body}")


def result(row: dict[str, Any]) -> Any:
    assert row["state"] == "succeeded", row
    return orjson.loads(row["answer"])["inline"]["result"]


async def test_a_service_does_a_submitted_task_under_one_key_however_often_it_is_tried(
    fleet: Scripted,
) -> None:
    body = {"model": "service", "name": "add", "arguments": {"sum": [1, 2], "fail_first": True}}
    row = await submitted(fleet, body)
    assert result(row) == {"sum": 3, "name": "add"}
    failed, won = await fleet.ledger(row["task_id"], 2)
    assert (failed["verdict"], won["verdict"]) == ("waste", "outcome")
    assert (won["input_tokens"], won["output_tokens"], won["estimated"]) == (0, 0, False)
    assert won["cost_usd"] == pytest.approx(0.5)
    assert failed["cost_usd"] == 0


@pytest.mark.parametrize("pool", ["pipes", "url"])
async def test_mcp_tools_do_submitted_tasks(fleet: Scripted, pool: str) -> None:
    row = await submitted(fleet, {"model": pool, "name": "add", "arguments": {"a": 20, "b": 3}})
    assert result(row) == {"result": 23}
    assert (row["kind"], row["pool"]) == ("tool", pool)


async def test_a_tool_that_fails_is_not_tried_again_and_says_why(fleet: Scripted) -> None:
    row = await submitted(fleet, {"model": "pipes", "name": "fail", "arguments": {"words": "no such city"}})
    assert row["state"] == "failed"
    assert "tool_error" in str(row)
    (only,) = await fleet.ledger(row["task_id"])
    assert only["cost_usd"] == pytest.approx(0.25)


async def test_a_pool_is_found_by_capability_and_wrong_bodies_are_told(fleet: Scripted) -> None:
    named = await submitted(
        fleet, {"name": "add", "arguments": {"sum": [4]}}, required_capabilities=["service"]
    )
    assert result(named)["sum"] == 4
    for body, word in (
        ({"model": "pipes", "name": "no-such-tool"}, "bad_request"),
        ({"model": "pipes", "arguments": {}}, "bad_request"),
        ({"model": "pipes", "name": "add", "argument": {}}, "bad_request"),
        ({"model": "claude", "name": "add"}, "no_pool"),
    ):
        row = await submitted(fleet, body)
        assert row["state"] == "failed"
        assert word in str(row)


async def test_r8_no_log_of_the_fleet_has_a_key(fleet: Scripted) -> None:
    row = await submitted(fleet, {"model": "pipes", "name": "environment"})
    assert "TOOL_KEY" in result(row)
    log = fleet.stage.state.logs / "worker-pipes.log"

    async def look() -> bool | None:
        return True if "my key is" in log.read_text() else None

    await until(look, "what the tool server wrote")
    for file in fleet.stage.state.logs.glob("*.log"):
        found = file.read_text()
        assert HIDDEN not in found
        assert KEY not in found
