"""One answer, framed by seven servers: what a client gets of it is the same, streamed and whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadtest.model_server.process import ModelServerProcess
from schemas.messages import TaskSucceeded
from tests.contract.client_view import CALLS, DIALECTS, TEXT, check_plain, recorded, seen, streamed
from tests.integration.worker_rig import WorkerRig, chat, openai_rig

BROKEN_UP = [
    {},
    {"split_bytes": 1},
    {"split_bytes": 5},
    {"content_type": "text/plain"},
    {"content_type": "application/json"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess() as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        await made.work()
        yield made


def raw(dialect: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"raw": recorded(dialect, kind).decode(), **more}


def test_every_server_of_the_table_is_recorded() -> None:
    assert DIALECTS == ["azure", "llamacpp", "ollama", "openai", "sglang", "tgi", "vllm"]


@pytest.mark.parametrize("how", BROKEN_UP, ids=str)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_text_is_the_same(rig: WorkerRig, dialect: str, how: dict[str, Any]) -> None:
    events, answer = await streamed(rig, raw(dialect, "text", **how))
    check_plain(events, usage_asked=True)
    got = seen(events)
    assert (got.text, got.calls, got.finish) == (TEXT, [], "stop")
    choice = answer["choices"][0]
    assert choice["message"]["content"] == TEXT
    assert choice["finish_reason"] == "stop"
    for usage in (got.usage, answer["usage"]):
        assert usage is not None
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage.get("estimated")) == (11, 5, None)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_calls_are_the_same(rig: WorkerRig, dialect: str) -> None:
    events, answer = await streamed(rig, raw(dialect, "tools"), usage=False)
    check_plain(events, usage_asked=False)
    got = seen(events)
    assert (got.text, got.calls, got.finish) == ("", CALLS, "tool_calls")
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    whole = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
    assert whole == CALLS
    assert {call["type"] for call in message["tool_calls"]} == {"function"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_client_that_does_not_stream_gets_the_same(rig: WorkerRig, dialect: str) -> None:
    task_id = await rig.submit(chat(x_script=raw(dialect, "text")))
    answer = await rig.answer(task_id)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (11, 5)
    end = await rig.end(task_id)
    assert isinstance(end, TaskSucceeded)
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.estimated) == (11, 5, False)


async def test_what_azures_filter_found_comes_with_the_first_choice(rig: WorkerRig) -> None:
    events, answer = await streamed(rig, raw("azure", "text"))
    found = [event["prompt_filter_results"] for event in events if "prompt_filter_results" in event]
    assert found == [answer["prompt_filter_results"]]
    assert events[0]["prompt_filter_results"][0]["content_filter_results"]["hate"]["severity"] == "safe"
    assert events[0]["created"] > 0
