"""Streamed calls: bound to one attempt, repaired only from its own record, ended by a word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from schemas.failures import FailureKind
from schemas.messages import Failure, TaskClosed
from tests.chat_bodies import answer_of, ask, delta, events_of, joined_text
from tests.ingress_bench import Bench, LaneTask, eventually, ingress_bench

BROKE = Failure(kind=FailureKind.RESET, message="the backend's stream broke")


def stream(client: httpx.AsyncClient, **more: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/v1/chat/completions", json=ask(stream=True, **more)))


class Reading:
    """A stream that is being read: what has come so far, and all of it in the end."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.text = ""
        self._task = asyncio.create_task(self._read(client))

    async def _read(self, client: httpx.AsyncClient) -> None:
        body = ask(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for text in response.aiter_text():
                self.text += text

    async def has(self, text: str) -> None:
        await eventually(lambda: text in self.text)

    async def events(self) -> list[Any]:
        await self._task
        return events_of(self.text)


async def whole_stream(bench: Bench, task: LaneTask, text: str) -> None:
    """A chunk a word, then the terminal record."""
    run = task.attempt()
    words = text.split(" ")
    for seq, word in enumerate(words):
        content = word if seq == 0 else f" {word}"
        fields = {"role": "assistant", "content": content} if seq == 0 else {"content": content}
        await bench.chunk(task, run, seq, [delta(**fields)])
    await bench.chunk(task, run, len(words), [delta("stop")])
    await bench.succeed(task, answer_of(text), run=run, chunks=len(words) + 1)


async def test_a_stream_arrives_in_order_and_ends_with_done(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client)
        task = await bench.next_task()
        await whole_stream(bench, task, "one two three")
        response = await call
    events = events_of(response.text)
    assert joined_text(events) == "one two three"
    assert events[-1] == "[DONE]"
    assert not any("usage" in event for event in events[:-1])
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-chimera-pool"] == "chat-fast"
    assert task.headers.reply_partition is not None


async def test_the_openai_client_streams(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:

        async def read() -> tuple[str, int | None]:
            text, tokens = "", None
            options: Any = {"include_usage": True}
            created: Any = await client.chat.completions.create(**ask(), stream=True, stream_options=options)
            async for chunk in created:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                tokens = chunk.usage.total_tokens if chunk.usage else tokens
            return text, tokens

        call = asyncio.create_task(read())
        await whole_stream(bench, await bench.next_task(), "hello there")
        assert await call == ("hello there", 10)


async def test_s1_a_broken_attempt_before_content_is_not_seen(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client)
        task = await bench.next_task()
        first = task.attempt()
        await bench.started(task, first)
        await bench.chunk(task, first, 0, [delta(role="assistant", content="")])
        await bench.attempt_failed(task, first, BROKE)
        second = task.attempt()
        await bench.started(task, second)
        await whole_stream(bench, task, "all is well")
        response = await call
    events = events_of(response.text)
    assert joined_text(events) == "all is well"
    assert events[-1] == "[DONE]"
    assert sum("role" in e["choices"][0]["delta"] for e in events[:-1]) == 1


async def test_s1_a_failure_before_content_is_a_plain_status(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        call = asyncio.ensure_future(client.chat.completions.create(**ask(), stream=True))
        task = await bench.next_task()
        run = task.attempt()
        await bench.chunk(task, run, 0, [delta(role="assistant", content="")])
        await bench.fail(task, Failure(kind=FailureKind.OVERLOADED, message="busy"), run=run, chunks=1)
        with pytest.raises(openai.InternalServerError) as caught:
            await call
    assert caught.value.status_code == 503


async def test_s2_a_failure_after_content_is_one_error_event_and_no_done(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        reading = Reading(client)
        task = await bench.next_task()
        run = task.attempt()
        await bench.chunk(task, run, 0, [delta(content="half")])
        await reading.has("half")
        await bench.fail(task, BROKE, run=run, chunks=1)
        events = await reading.events()
    assert joined_text(events[:1]) == "half"
    assert events[1:] == [
        {"error": {"message": BROKE.message, "type": "backend_error", "param": None, "code": "reset"}}
    ]


async def test_s2_the_openai_client_raises_at_the_error_event(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        call = asyncio.ensure_future(client.chat.completions.create(**ask(), stream=True))
        task = await bench.next_task()
        run = task.attempt()
        await bench.chunk(task, run, 0, [delta(content="half")])
        created: Any = await call
        await bench.fail(task, BROKE, run=run, chunks=1)
        with pytest.raises(openai.APIError, match="stream broke"):
            async for _ in created:
                pass


async def test_another_attempt_after_content_interrupts_the_stream(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        reading = Reading(client)
        task = await bench.next_task()
        first, second = task.attempt(), task.attempt()
        await bench.started(task, first)
        await bench.chunk(task, first, 0, [delta(content="half")])
        await reading.has("half")
        await bench.started(task, second)
        await bench.chunk(task, second, 0, [delta(content="SPLICED")])
        events = await reading.events()
        await bench.closed(task, "interrupted")
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert "SPLICED" not in reading.text


async def test_an_outcome_of_another_attempt_interrupts_without_a_close(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        reading = Reading(client)
        task = await bench.next_task()
        await bench.chunk(task, task.attempt(), 0, [delta(content="half")])
        await reading.has("half")
        await bench.succeed(task, answer_of("a whole other answer"), run=task.attempt(), chunks=1)
        events = await reading.events()
        closes = [m for m in bench.said_of(task, bench.names.results) if isinstance(m, TaskClosed)]
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert closes == []


async def test_missing_chunks_are_rebuilt_from_the_attempts_own_record(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client)
        task = await bench.next_task()
        run = task.attempt()
        await bench.chunk(task, run, 0, [delta(role="assistant", content="one ")])
        await bench.chunk(task, run, 2, [delta(content="three")])  # 1 was lost
        await bench.succeed(task, answer_of("one two three"), run=run, chunks=4)
        events = events_of((await call).text)
    assert joined_text(events) == "one two three"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"


async def test_an_answer_without_chunks_is_streamed_from_the_record(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client, stream_options={"include_usage": True})
        await bench.succeed(await bench.next_task(), answer_of("not streamable"))
        events = events_of((await call).text)
    assert joined_text(events) == "not streamable"
    assert [e["usage"]["total_tokens"] for e in events[:-1] if e.get("usage")] == [10]


@pytest.mark.parametrize("where", ["with choices", "alone", "nowhere"])
async def test_s8_usage_is_told_once(tmp_path: Path, where: str) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client, stream_options={"include_usage": True})
        task = await bench.next_task()
        run = task.attempt()
        last = delta("stop", content="hi")
        chunks: list[dict[str, Any]] = [last | {"usage": usage}] if where == "with choices" else [last]
        if where == "alone":
            chunks.append({**last, "choices": [], "usage": usage})
        await bench.chunk(task, run, 0, chunks)
        await bench.succeed(task, answer_of("hi") | {"usage": usage}, run=run, chunks=1)
        events = events_of((await call).text)
    assert [e["usage"] for e in events[:-1] if e.get("usage")] == [usage]


async def test_s6_characters_come_through_whole(tmp_path: Path) -> None:
    text = "日本語 🙂 👩‍👩‍👧 naïve"
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client)
        await whole_stream(bench, await bench.next_task(), text)
        response = await call
    assert joined_text(events_of(response.text)) == text
    assert "\N{REPLACEMENT CHARACTER}" not in response.text
