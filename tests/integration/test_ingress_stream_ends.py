"""How streams end that nobody reads, that nobody answers, and what they leave behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message, Send

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.ingress.settings import IngressKnobs
from tests.chat_bodies import answer_of, ask, delta, events_of
from tests.ingress_bench import LONGEST_S, Bench, eventually, ingress_bench


def stream(client: httpx.AsyncClient, **more: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/v1/chat/completions", json=ask(stream=True, **more)))


async def test_s4_a_queued_stream_is_pinged_and_then_told_of_the_failure(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, knobs=IngressKnobs(ping_s=0.05)) as bench, bench.http() as client:
        call = stream(client)
        task = await bench.next_task()
        await asyncio.sleep(0.3)
        await bench.fail(task, Failure(kind=FailureKind.SERVER_ERROR, message="no"))
        response = await call
    assert response.status_code == 200
    assert ": ping\n\n" in response.text
    assert [event["error"]["code"] for event in events_of(response.text)] == ["server_error"]


async def test_s5_hanging_up_on_a_stream_closes_and_cancels(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        async with bench.openai() as client:
            call = asyncio.ensure_future(client.chat.completions.create(**ask(), stream=True))
            task = await bench.next_task()
            await bench.chunk(task, task.attempt(), 0, [delta(content="half")])
            created: Any = await call
            async for _ in created:
                break
            await created.close()
        await bench.closed(task, "cancelled")


async def test_s5_hanging_up_before_content_closes_and_cancels(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        async with bench.http() as client:
            call = stream(client)
            task = await bench.next_task()
            call.cancel()
            await asyncio.wait({call})
        await bench.closed(task, "cancelled")


async def test_the_deadline_ends_a_stream_with_an_error_event(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        body = ask(stream=True, metadata={"chimera_deadline_ms": "300"})
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        task = await bench.next_task()
        await bench.chunk(task, task.attempt(), 0, [delta(content="half")])
        events = events_of((await call).text)
    assert events[-1]["error"]["type"] == "deadline_exceeded"


async def test_s10_a_client_that_does_not_read_is_cut_off_with_a_reason(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port, limit=1024)
        body = b'{"model":"chat-fast","stream":true,"messages":[{"role":"user","content":"hi"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        task = await bench.next_task()
        run = task.attempt()
        for seq in range(120):  # 12 MB: more than the sockets and our bound together
            await bench.chunk(task, run, seq, [delta(content="x" * 100_000)])
            await asyncio.sleep(0.005)
        await bench.closed(task, "cancelled")
        assert bench.ingress.dispatcher.load.by_pool["chat-fast"] == 0
        writer.close()
        del reader


async def test_nothing_is_held_after_the_end(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = stream(client)
        await bench.succeed(await bench.next_task(), answer_of("done with it"))
        await call
        await eventually(lambda: not bench.ingress.inbox._listeners)
        assert bench.ingress.dispatcher.load.by_pool["chat-fast"] == 0


async def asgi_call(bench: Bench, send: Send, **more: Any) -> None:
    """A chat as a server hands it over, with the server's own `send`; its client stays."""
    body = orjson.dumps(ask(**more))
    request: list[Any] = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        return request.pop() if request else await asyncio.get_running_loop().create_future()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }
    await bench.ingress.app(scope, receive, send)


async def test_a_fault_in_writing_a_stream_closes_its_task(tmp_path: Path) -> None:
    """The model must not run on for a stream that broke off without hanging up."""

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise RuntimeError("the socket is gone")

    async with ingress_bench(tmp_path) as bench:
        call = asyncio.create_task(asgi_call(bench, send, stream=True))
        task = await bench.next_task()
        await bench.chunk(task, task.attempt(), 0, [delta(content="half")])
        await call
        await bench.closed(task, "cancelled")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_is_broken_off_inside_closes_its_task(tmp_path: Path, streamed: bool) -> None:
    async def send(_: Message) -> None: ...

    async with ingress_bench(tmp_path) as bench:
        call = asyncio.create_task(asgi_call(bench, send, stream=streamed))
        task = await bench.next_task()
        call.cancel()
        await asyncio.wait({call})
        await bench.closed(task, "cancelled")


async def test_what_its_deadline_ended_or_its_outcome_decided_is_not_closed(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        answered, overdue = stream(client), stream(client, metadata={"chimera_deadline_ms": "300"})
        for task in (await bench.next_task(), await bench.next_task()):
            if task.headers.deadline_ms - task.task.arrived_ms > 300:
                await bench.succeed(task, answer_of("done with it"))
        await asyncio.gather(answered, overdue)
        await bench.ingress.dispatcher.background.finish(LONGEST_S)
        assert bench.bus.records(bench.names.control) == []
