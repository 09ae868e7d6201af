"""The unmodified `openai` package is a client of the fleet: answers are whole, whichever way they come."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.architecture.sources import ROOT
from tests.e2e.asked import QUESTION, TEXT, scripted
from tests.e2e.staged import Scripted, new_marker

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


async def test_a_whole_answer_with_the_model_that_gave_it(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    raw = await client.chat.completions.with_raw_response.create(
        model="scripted",
        messages=QUESTION,
        extra_body=scripted(marker=marker),
        extra_headers={"x-request-id": marker},
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "breaking"
    assert raw.headers["x-chimera-pool"] == "scripted"
    assert raw.headers["x-request-id"] == marker
    seen = (await fleet.ended(marker))[0]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == seen.tokens_in
    assert answer.usage.completion_tokens == seen.tokens_out
    assert answer.usage.total_tokens == seen.tokens_in + seen.tokens_out


async def test_the_sync_client_gets_the_same_whole_and_streamed(sync_client: openai.OpenAI) -> None:
    whole = sync_client.chat.completions.create(model="scripted", messages=QUESTION, extra_body=scripted())
    stream = sync_client.chat.completions.create(
        model="scripted", messages=QUESTION, stream=True, extra_body=scripted()
    )
    with stream:
        joined = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert whole.choices[0].message.content == joined == TEXT


async def test_a_stream_has_usage_only_where_it_was_asked_for(client: openai.AsyncOpenAI) -> None:
    asked = await client.chat.completions.create(
        model="scripted",
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=scripted(),
    )
    chunks = [chunk async for chunk in asked]
    counted = [chunk for chunk in chunks if chunk.usage is not None]
    assert counted == chunks[-1:]
    assert chunks[-1].choices == []
    assert counted[0].usage is not None
    assert counted[0].usage.completion_tokens > 0
    assert len({chunk.id for chunk in chunks}) == 1

    silent = await client.chat.completions.create(
        model="scripted", messages=QUESTION, stream=True, extra_body=scripted()
    )
    chunks = [chunk async for chunk in silent]
    assert [chunk for chunk in chunks if chunk.usage is not None] == []
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_tools_come_back_as_calls_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    calls = [
        {"id": "call_a", "name": "weather", "arguments": json.dumps({"city": "Zürich"})},
        {"id": "call_b", "name": "weather", "arguments": json.dumps({"city": "東京"})},
    ]
    script = scripted({"tool_calls": calls})
    answer = await client.chat.completions.create(
        model="scripted", messages=QUESTION, tools=[WEATHER], extra_body=script
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    got = answer.choices[0].message.tool_calls or []
    assert [(c.id, c.function.name, c.function.arguments) for c in got if c.type == "function"] == [
        (call["id"], call["name"], call["arguments"]) for call in calls
    ]
    async with client.chat.completions.stream(
        model="scripted", messages=QUESTION, tools=[WEATHER], extra_body=script
    ) as stream:
        final = await stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls or []
    assert [(c.id, c.function.arguments) for c in streamed] == [(c["id"], c["arguments"]) for c in calls]


async def test_many_choices_and_logprobs_are_passed_through(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="scripted", messages=QUESTION, n=3, logprobs=True, top_logprobs=2, seed=7, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.message.content
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert len(choice.logprobs.content[0].top_logprobs) == 2


async def test_plain_completions_and_the_list_of_models(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="scripted", prompt="Once", extra_body=scripted())
    assert answer.choices[0].text == TEXT
    stream = await client.completions.create(
        model="scripted", prompt="Once", stream=True, extra_body=scripted()
    )
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == TEXT
    assert {model.id async for model in client.models.list()} >= {"scripted", "real"}


async def test_a_real_model_streams_what_it_would_have_said_whole(client: openai.AsyncOpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name three colours."}]
    whole = await client.chat.completions.create(
        model="real", messages=messages, temperature=0, seed=1, max_tokens=24
    )
    stream = await client.chat.completions.create(
        model="real",
        messages=messages,
        temperature=0,
        seed=1,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert joined
    assert joined == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_the_python_example_of_the_readme_runs_as_it_is(fleet: Scripted) -> None:
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    program = block[1].replace("http://127.0.0.1:8080/v1", fleet.base_url)
    assert program != block[1]
    command = [sys.executable, "-c", program]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
