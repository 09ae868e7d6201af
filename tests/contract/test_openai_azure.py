"""Azure OpenAI: the same API at other addresses, with another header, and a filter of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import TaskFailed
from services.adapters.model_backends.openai import OpenAIBackend
from services.core.fleet import Azure
from services.ports import BackendFault, ModelCall
from services.runtime.fleet_file import parse_fleet, to_fleet
from tests.contract.client_view import TEXT, check_plain, recorded, seen, streamed
from tests.integration.worker_rig import POOL, WorkerRig, chat

KEY = "0123456789abcdef0123456789abcdef"
AZURE = Azure(deployment="gpt-4o-eu", api_version="2024-10-21")
PATH = "/openai/deployments/gpt-4o-eu"
# As the service says it, with the key in it, which it does not.
FILTERED = {
    "error": {
        "message": f"The response was filtered due to the prompt triggering the policy ({KEY}).",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "high"}},
        },
    }
}
BUSY = {"error": {"code": "429", "message": "Requests have exceeded the call rate limit."}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=3) as running:
        yield running


@pytest.fixture
async def backend() -> AsyncIterator[OpenAIBackend]:
    made = OpenAIBackend(slots=4, api_key=KEY, azure=AZURE)
    yield made
    await made.aclose()


@pytest.fixture
async def rig(server: ModelServerProcess, backend: OpenAIBackend, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    made = WorkerRig(backend, tmp_path, replace(POOL, base_urls=(server.root_url,), azure=AZURE))
    try:
        await made.work()
        yield made
    finally:
        await made.close()


def call(server: ModelServerProcess, path: str, body: dict[str, Any], attempt: str) -> ModelCall:
    return ModelCall(
        server.root_url, path, orjson.dumps(body), attempt, streaming=bool(body.get("stream")),
        timeouts=POOL.timeouts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(stream=True)),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
async def test_a_call_goes_to_the_deployment_with_version_and_key(
    server: ModelServerProcess, backend: OpenAIBackend, path: str, body: dict[str, Any]
) -> None:
    events = [e async for batch in backend.events(call(server, path, body, path)) for e in batch]
    assert events
    (record,) = [record for record in server.log() if record.attempt == path]
    assert record.path == PATH + path.removeprefix("/v1")
    assert await backend.answers(server.root_url)


async def test_another_servers_addresses_are_not_azures(server: ModelServerProcess) -> None:
    plain = OpenAIBackend(slots=1, api_key=KEY)
    made = call(server, PATH + "/chat/completions?api-version=1", chat(), "plain")
    with pytest.raises(BackendFault) as caught:
        await anext(plain.events(made))
    assert caught.value.kind is FailureKind.NOT_FOUND  # as the key came in the other header
    await plain.aclose()


async def test_a_stream_is_as_any_other(rig: WorkerRig) -> None:
    events, answer = await streamed(rig, {"raw": recorded("azure", "text").decode()})
    check_plain(events, usage_asked=True)
    assert seen(events).text == answer["choices"][0]["message"]["content"] == TEXT


async def test_a_filtered_prompt_is_the_callers_to_mend(rig: WorkerRig) -> None:
    end = await rig.end(await rig.submit(chat(x_script={"status": 400, "error_body": FILTERED})))
    assert isinstance(end, TaskFailed)
    failure = end.failure
    assert (failure.kind, failure.code, failure.param) == (
        FailureKind.BAD_REQUEST,
        "content_filter",
        "prompt",
    )
    assert "filtered" in failure.message
    assert KEY not in failure.message


async def test_a_filtered_answer_ends_so_though_it_says_nothing(rig: WorkerRig) -> None:
    chunks = [
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]},
    ]
    raw = "".join(f"data: {orjson.dumps(each).decode()}\n\n" for each in chunks) + "data: [DONE]\n\n"
    events, answer = await streamed(rig, {"raw": raw}, usage=False)
    check_plain(events, usage_asked=False)
    assert seen(events).finish == answer["choices"][0]["finish_reason"] == "content_filter"


async def test_r2_the_wait_is_told_in_milliseconds(
    server: ModelServerProcess, backend: OpenAIBackend
) -> None:
    script = {
        "status": 429,
        "error_body": BUSY,
        "retry_after": 1,
        "headers": {"retry-after-ms": "350"},
    }
    with pytest.raises(BackendFault) as caught:
        await anext(backend.events(call(server, "/v1/chat/completions", chat(x_script=script), "busy")))
    assert caught.value.kind is FailureKind.RATE_LIMITED
    assert caught.value.retry_after_s == 0.35


def test_the_fleet_file_names_the_deployment() -> None:
    text = """
version: 1
pools:
  - name: azure
    model: gpt-4o
    base_url: https://example.openai.azure.com
    azure: {deployment: gpt-4o-eu, api_version: "2024-10-21"}
"""
    assert to_fleet(parse_fleet(text, "f")).pools[0].azure == AZURE
