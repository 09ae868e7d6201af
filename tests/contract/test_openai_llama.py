"""A real llama.cpp behind the adapter: none of its oddities reaches a client either."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from infra.llama.process import LlamaServer
from infra.llama.settings import LlamaSettings
from schemas.failures import FailureKind
from schemas.messages import TaskFailed
from services.core.fleet import Batching
from services.core.rewrite import LLAMA_CPP
from tests.contract.client_view import check_plain, seen
from tests.integration.worker_rig import POOL, WorkerRig, openai_rig

pytestmark = pytest.mark.asyncio(loop_scope="session")
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Name three colours."}],
    "temperature": 0,
    "seed": 1,
    "max_tokens": 16,
}


@pytest_asyncio.fixture(loop_scope="session")
async def rig(llama_server: LlamaServer, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    pool = replace(POOL, provider=LLAMA_CPP, backend_model="smollm2", slots=2)
    async with openai_rig(llama_server.origin, tmp_path, pool) as made:
        await made.work()
        yield made


async def test_streamed_and_whole_are_the_same_and_plain(rig: WorkerRig) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 1}
    task_id = await rig.submit(ASK | options, stream=True)
    events = await rig.events(task_id)
    check_plain(events, usage_asked=True)
    whole = await rig.answer(await rig.submit(dict(ASK)))
    got = seen(events)
    assert got.text
    assert got.text == whole["choices"][0]["message"]["content"]
    assert got.finish == whole["choices"][0]["finish_reason"]
    assert got.usage is not None
    assert got.usage["completion_tokens"] == whole["usage"]["completion_tokens"] > 0
    assert "timings" not in whole


async def test_its_figures_are_for_who_asks_for_them(rig: WorkerRig) -> None:
    answer = await rig.answer(await rig.submit(ASK | {"timings_per_token": True}))
    assert answer["timings"]["predicted_n"] > 0


async def test_embeddings_of_a_real_model_share_calls_too(tmp_path: Path) -> None:
    settings = LlamaSettings(alias="smollm2", slots=2, embeddings=True)
    pool = replace(POOL, capabilities=frozenset({"embed"}), batching=Batching(max_wait_s=0.5))
    texts = ["a red rose", "a scarlet rose", "the stock market fell"]
    async with (
        LlamaServer(settings, log_path=tmp_path / "log") as server,
        openai_rig(server.origin, tmp_path, pool) as rig,
    ):
        await rig.work()
        asked = [await rig.submit({"input": text}, kind="embedding") for text in texts]
        too_long = await rig.submit({"input": "word " * 500}, kind="embedding")
        packed = await rig.submit({"input": texts, "encoding_format": "base64"}, kind="embedding")
        alone = [(await rig.answer(task_id))["data"][0]["embedding"] for task_id in asked]
        end = await rig.end(too_long)
        assert isinstance(end, TaskFailed)
        assert (end.failure.kind, end.tries) == (FailureKind.TOO_LONG, 1)
        rows = (await rig.answer(packed))["data"]
    packed_sizes = [len(base64.b64decode(row["embedding"])) for row in rows]
    assert packed_sizes == [4 * len(vector) for vector in alone] == [4 * 576] * 3
    for vector in alone:
        assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-3)


async def test_a_prompt_that_does_not_fit_is_the_callers_to_mend(rig: WorkerRig) -> None:
    long = [{"role": "user", "content": "word " * 5000}]
    end = await rig.end(await rig.submit(ASK | {"messages": long}))
    assert isinstance(end, TaskFailed)
    assert (end.failure.kind, end.failure.code) == (FailureKind.TOO_LONG, "context_length_exceeded")
