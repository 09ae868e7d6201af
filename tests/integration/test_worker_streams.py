"""The worker between a breaking model server and the log: what a caller and the ledger hear (CASES S1-S8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, AttemptStarted, TaskFailed, TaskSucceeded
from services.core.fleet import Timeouts
from tests.integration.worker_rig import (
    POOL,
    WorkerRig,
    chat,
    openai_rig,
    scripted,
    streamed_text,
    text_of,
    tries,
    until,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=8) as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        await made.work()
        yield made


async def logged(server: ModelServerProcess, attempt: str) -> AttemptRecord:
    """What the server says of an attempt once it is over."""
    found = await until(lambda: [record for record in server.log() if record.attempt == attempt])
    record: AttemptRecord = found[0]
    return record


async def test_a_whole_answer_touches_results_once_and_nothing_else(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    """A quick one: where it takes longer than `announce_s`, its start is told too."""
    async with openai_rig(server.root_url, tmp_path, announce_s=60.0) as rig:
        await rig.work()
        task_id = await rig.submit(chat("how are you"))
        answer = await rig.answer(task_id)
        assert answer["id"] == f"chatcmpl-{task_id}"
        assert answer["model"] == "fast-1"
        assert answer["object"] == "chat.completion"
        assert text_of(answer)
        (end,) = rig.results(task_id)
        assert isinstance(end, TaskSucceeded)
        record = await logged(server, end.run.attempt)
        assert record.stream
        assert (end.usage.input_tokens, end.usage.output_tokens) == (record.tokens_in, record.tokens_out)
        assert not end.usage.estimated
        assert rig.chunks(task_id) == []
        await rig.commits_reach(1)


async def test_a_streamed_answer_is_announced_and_equals_the_whole_one(rig: WorkerRig) -> None:
    whole = await rig.submit(chat("tell me"))
    told = text_of(await rig.answer(whole))
    task_id = await rig.submit(
        chat("tell me", stream=True, stream_options={"include_usage": True}), stream=True
    )
    end = await rig.end(task_id)
    assert isinstance(end, TaskSucceeded)
    events = await rig.events(task_id)
    assert streamed_text(events) == told == text_of(await rig.answer(task_id))
    assert {event["id"] for event in events} == {f"chatcmpl-{task_id}"}
    assert {event["model"] for event in events} == {"fast-1"}
    assert [chunk.seq for chunk in rig.chunks(task_id)] == list(range(end.chunks))
    assert [chunk.worker for chunk in rig.chunks(task_id)] == ["worker-1", *[None] * (end.chunks - 1)]
    assert [event["usage"] for event in events if event.get("usage")] == [
        (await rig.answer(task_id))["usage"]
    ]
    assert events[-1]["choices"] == []
    assert len(rig.of(AttemptStarted, task_id)) == 1


async def test_s8_usage_is_not_in_a_stream_that_did_not_ask_for_it(rig: WorkerRig) -> None:
    body = scripted(usage_where="every_chunk") | {"stream": True}
    task_id = await rig.submit(body, stream=True)
    await rig.end(task_id)
    assert all("usage" not in event for event in await rig.events(task_id))
    assert all(event["choices"] for event in await rig.events(task_id))


async def test_completions_and_embeddings_have_their_own_shapes(rig: WorkerRig) -> None:
    text = await rig.submit({"model": "x", "prompt": "once upon"}, kind="completion")
    answer = await rig.answer(text)
    assert answer["object"] == "text_completion"
    assert answer["id"] == f"cmpl-{text}"
    assert answer["choices"][0]["text"]
    vectors = await rig.submit({"model": "x", "input": ["a", "b"]}, kind="embedding")
    answer = await rig.answer(vectors)
    assert len(answer["data"]) == 2
    assert answer["model"] == "fast-1"
    end = await rig.end(vectors)
    assert end.usage is not None
    assert end.usage.input_tokens == 2
    assert not end.usage.estimated


async def test_s1_a_break_before_content_falls_over_unseen(rig: WorkerRig) -> None:
    cases: dict[str, dict[str, Any]] = {
        "reset before the head": {"reset_before": True},
        "reset after lifecycle frames": {"reset_after_chunks": 0},
        "end after lifecycle frames": {"end_after_chunks": 0, "role_only_first": True},
    }
    for name, broken in cases.items():
        body = tries(name, broken, {"text": "all is well"}) | {"stream": True}
        task_id = await rig.submit(body, stream=True)
        assert text_of(await rig.answer(task_id)) == "all is well", name
        (failed,) = rig.of(AttemptFailed, task_id)
        assert failed.failure.kind is FailureKind.RESET, name
        assert failed.next == "local"
        assert streamed_text(await rig.events(task_id)) == "all is well", name
        attempts = {chunk.attempt for chunk in rig.chunks(task_id)}
        assert len(attempts) == 1, name
        assert failed.run.attempt not in attempts


@pytest.mark.parametrize("broken", [{"reset_after_chunks": 3}, {"end_after_chunks": 3}])
async def test_s2_a_break_after_content_ends_a_stream_and_retries_what_nobody_saw(
    rig: WorkerRig, broken: dict[str, int]
) -> None:
    streamed = await rig.submit(tries(f"s {broken}", broken, {}) | {"stream": True}, stream=True)
    end = await rig.end(streamed)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.INTERRUPTED
    assert end.answer is not None
    assert text_of(end.answer.inline) == streamed_text(await rig.events(streamed)) != ""
    assert end.usage is not None
    assert end.usage.output_tokens > 0
    whole = await rig.submit(tries(f"w {broken}", broken, {"text": "whole again"}))
    assert text_of(await rig.answer(whole)) == "whole again"
    assert (await rig.failed_try(whole)).failure.kind is FailureKind.INTERRUPTED


async def test_s3_an_empty_or_failed_end_is_a_failure(rig: WorkerRig) -> None:
    cases: dict[str, dict[str, Any]] = {
        "empty": {"empty": True},
        "failed": {"failed_terminal": True},
        "html": {"error_body": "<html>", "content_type": "text/html", "status": 200},
        "not json": {"bad_json_chunk": 0},
        "error object": {"error_body": {"error": {"message": "boom"}}, "status": 200},
    }
    for name, broken in cases.items():
        task_id = await rig.submit(tries(name, broken, {"text": "better"}))
        assert text_of(await rig.answer(task_id)) == "better", name
        failed = await rig.failed_try(task_id)
        assert failed.failure.kind in (FailureKind.BAD_ANSWER, FailureKind.SERVER_ERROR), name


async def test_s4_silence_before_and_after_content_is_bounded(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    timeouts = Timeouts(connect_s=0.2, first_token_s=0.3, idle_s=0.3, total_s=10, min_tokens_per_s=20)
    async with openai_rig(server.root_url, tmp_path, replace(POOL, timeouts=timeouts)) as rig:
        await rig.work()
        for name, slow, kind in (
            ("no head", {"delay_s": 30}, FailureKind.FIRST_TOKEN_TIMEOUT),
            ("no content", {"ttft_s": 30}, FailureKind.FIRST_TOKEN_TIMEOUT),
            ("hang", {"hang_after_chunks": 2}, FailureKind.IDLE_TIMEOUT),
            ("drip", {"drip_s": 0.2, "chunks": 40}, FailureKind.TOO_SLOW),
        ):
            task_id = await rig.submit(tries(name, slow, {"text": "quick"}))
            assert text_of(await rig.answer(task_id)) == "quick", name
            failed = await rig.failed_try(task_id)
            assert failed.failure.kind is kind, name
            assert (await logged(server, failed.run.attempt)).outcome == "disconnected", name


async def test_s5_a_cancel_reaches_the_model_server_streamed_or_not(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    for stream in (True, False):
        body = scripted(hang_after_chunks=1) | {"stream": stream}
        task_id = await rig.submit(body, stream=stream)
        started = await rig.started(task_id)
        await rig.cancel(task_id)
        assert (await logged(server, started.run.attempt)).outcome == "disconnected"
        failed = await rig.failed_try(task_id)
        assert failed.next == "closed"
        assert failed.run.attempt == started.run.attempt
        assert failed.usage.output_tokens > 0
    await rig.commits_reach(2)
    assert rig.of(TaskFailed) == []


async def test_s5_a_queued_task_is_pruned_and_one_attempt_can_be_meant(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    busy = [await rig.submit(scripted(hang_after_chunks=1)) for _ in range(POOL.slots)]
    await until(lambda: len(rig.of(AttemptStarted)) == POOL.slots)
    queued = await rig.submit(chat("never", x_marker="never"))
    await rig.cancel(queued)
    await rig.cancel(busy[0], attempt="another one")
    await rig.cancel(busy[1], attempt=rig.of(AttemptStarted, busy[1])[0].run.attempt)
    await rig.failed_try(busy[1])
    assert rig.results(queued) == []
    assert len(rig.results(busy[0])) == 1
    for task_id in busy:
        await rig.cancel(task_id)
    await rig.commits_reach(POOL.slots + 1)
    assert all(record.marker != "never" for record in server.log())


async def test_s6_characters_split_over_reads_stay_whole(rig: WorkerRig) -> None:
    text = "größer 🙂👩‍👩‍👧 日本語 ok"
    for framing in ({}, {"crlf": True}, {"comments": True}, {"no_done": True}):
        task_id = await rig.submit(
            scripted(text=text, split_bytes=1, **framing) | {"stream": True}, stream=True
        )
        assert text_of(await rig.answer(task_id)) == text
        assert streamed_text(await rig.events(task_id)) == text


async def test_s7_parallel_tool_calls_are_rebuilt(rig: WorkerRig) -> None:
    calls = [
        {"id": "call_a", "name": "weather", "arguments": '{"city": "Zürich", "unit": "C"}'},
        {"id": "call_b", "name": "time", "arguments": '{"zone": "CET"}'},
    ]
    task_id = await rig.submit(scripted(tool_calls=calls))
    answer = await rig.answer(task_id)
    made = answer["choices"][0]["message"]["tool_calls"]
    assert [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in made
    ] == calls
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("where", ["last_with_choices", "own_chunk", "every_chunk", "none", "zero"])
async def test_s8_usage_is_counted_once_and_estimated_only_where_absent(rig: WorkerRig, where: str) -> None:
    body = scripted(usage_where=where, text="one two three")
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    for streamed in (False, True):
        task_id = await rig.submit(body | (asked if streamed else {}), stream=streamed)
        end = await rig.end(task_id)
        assert isinstance(end, TaskSucceeded)
        assert end.usage.estimated is (where == "none")
        if where == "zero":
            assert (end.usage.input_tokens, end.usage.output_tokens) == (0, 0)
        else:
            assert end.usage.output_tokens > 0
        if streamed:
            told = [event["usage"] for event in await rig.events(task_id) if event.get("usage") is not None]
            assert len(told) == 1
            assert told[0]["completion_tokens"] == end.usage.output_tokens
            assert bool(told[0].get("estimated")) is (where == "none")


async def test_an_answer_that_is_not_streamed_although_it_was_asked_for(rig: WorkerRig) -> None:
    task_id = await rig.submit(scripted(json_not_sse=True, text="at once") | {"stream": True}, stream=True)
    assert text_of(await rig.answer(task_id)) == "at once"
    assert streamed_text(await rig.events(task_id)) == "at once"
