"""What an ingress does with streams whose worker is dead in `fleet`, and what it shows of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from schemas.codec import encode, message_headers
from schemas.fleet_messages import WorkerBeat
from services.core.fleet_table import DEAD_AFTER_S, stall_bounds
from services.ingress.settings import IngressKnobs
from services.ports import OutRecord
from tests.chat_bodies import answer_of, ask, delta, events_of, joined_text
from tests.ingress_bench import FLEET, Bench, LaneTask, eventually, ingress_bench


def stream(client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/v1/chat/completions", json=ask(stream=True)))


async def beat(bench: Bench, worker: str, **fields: Any) -> None:
    said = {"pool": "chat-fast", "state": "ready", "slots": 2, "in_flight": 1, **fields}
    message = WorkerBeat(sent_ms=1, worker=worker, **said)
    record = OutRecord(bench.names.fleet, message.key.encode(), encode(message), message_headers(message), 0)
    await bench.publisher.send(record, timeout_s=5)


@asynccontextmanager
async def beating(bench: Bench, worker: str, **fields: Any) -> AsyncIterator[None]:
    async def go_on() -> None:
        while True:
            await beat(bench, worker, **fields)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(go_on())
    await eventually(lambda: bench.ingress.view.table.member(worker))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_whose_worker_dies_after_content_ends_as_interrupted(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        async with beating(bench, "w1"):
            call = stream(client)
            task = await bench.next_task()
            run = task.attempt()
            await bench.started(task, run)
            await bench.chunk(task, run, 0, [delta(content="half")])
            await asyncio.sleep(DEAD_AFTER_S + 1)
            assert not call.done(), "it beats"
        events = events_of((await call).text)
        assert joined_text(events) == "half"
        assert events[-1]["error"]["code"] == "stream_interrupted"
        await bench.closed(task, "interrupted")
        assert not bench.ingress.bound._streams


async def test_a_worker_that_beats_without_a_token_is_as_dead(tmp_path: Path) -> None:
    stalled_s = stall_bounds(FLEET)["chat-fast"]
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        async with beating(bench, "w1", quiet_s=stalled_s):
            call = stream(client)
            task = await bench.next_task()
            run = task.attempt()
            await bench.chunk(task, run, 0, [delta(content="half")])
            await bench.started(task, run)
            events = events_of((await call).text)
        assert events[-1]["error"]["code"] == "stream_interrupted"
        await bench.closed(task, "interrupted")


async def half_said(bench: Bench, client: httpx.AsyncClient) -> tuple[asyncio.Task[httpx.Response], LaneTask]:
    """A stream with content of worker `w1`, which beat once and never announced the try."""
    await beat(bench, "w1")
    call = stream(client)
    task = await bench.next_task()
    await bench.chunk(task, task.attempt(), 0, [delta(content="half")], worker="w1")
    return call, task


async def test_a_first_chunk_says_whose_death_ends_its_stream(tmp_path: Path) -> None:
    """Its try was never announced, and the next one's start says nothing of it."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call, task = await half_said(bench, client)
        async with beating(bench, "w2"):
            await bench.started(task, task.attempt().model_copy(update={"worker": "w2"}))
            events = events_of((await call).text)
        assert events[-1]["error"]["code"] == "stream_interrupted"
        await bench.closed(task, "interrupted")


async def test_a_worker_that_left_ends_its_streams_too(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call, _ = await half_said(bench, client)
        await eventually(lambda: bench.ingress.bound._streams)
        await bench.publisher.send(OutRecord(bench.names.fleet, b"worker/w1", None, [], 0), timeout_s=5)
        events = events_of((await call).text)
        assert joined_text(events) == "half"
        assert events[-1]["error"]["code"] == "stream_interrupted"


async def test_before_content_another_attempt_takes_over_from_a_dead_worker(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        await beat(bench, "w1")
        call = stream(client)
        task = await bench.next_task()
        dead, other = task.attempt(), task.attempt().model_copy(update={"worker": "w2"})
        await bench.started(task, dead)
        await bench.chunk(task, dead, 0, [delta(role="assistant")])
        table, view = bench.ingress.view.table, bench.ingress.view
        await eventually(lambda: table.is_dead("w1", view.now_s()))
        await asyncio.sleep(1.0)  # two looks of the watch
        assert not call.done()
        async with beating(bench, "w2"):
            await bench.started(task, other)
            await bench.chunk(task, other, 0, [delta(content="whole"), delta("stop")])
            await bench.succeed(task, answer_of("whole"), run=other, chunks=1)
            events = events_of((await call).text)
    assert joined_text(events) == "whole"
    assert events[-1] == "[DONE]"


async def test_an_outcome_that_stands_is_told_although_its_worker_died(tmp_path: Path) -> None:
    """Its death is seen while chunks are waited for that the outcome says there are."""
    knobs = IngressKnobs(repair_s=DEAD_AFTER_S + 2)
    async with ingress_bench(tmp_path, knobs=knobs) as bench, bench.http() as client:
        await beat(bench, "w1")
        call = stream(client)
        task = await bench.next_task()
        run = task.attempt()
        await bench.started(task, run)
        await bench.chunk(task, run, 0, [delta(content="who")])
        await eventually(lambda: bench.ingress.bound._streams)
        await bench.succeed(task, answer_of("whole"), run=run, chunks=2)
        await eventually(lambda: not bench.ingress.bound._streams)
        assert not call.done(), "the death is seen, the chunks are not"
        events = events_of((await call).text)
    assert joined_text(events) == "whole"
    assert events[-1] == "[DONE]"


async def test_a_frozen_broker_interrupts_no_stream(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client, beating(bench, "w1"):
        call = stream(client)
        task = await bench.next_task()
        run = task.attempt()
        await bench.started(task, run)
        await bench.chunk(task, run, 0, [delta(content="half ")])
        await eventually(lambda: bench.ingress.bound._streams)
        bench.bus.freeze()
        await asyncio.sleep(8)
        bench.bus.thaw()
        await asyncio.sleep(1.5)
        assert not call.done()
        await bench.chunk(task, run, 1, [delta(content="way"), delta("stop")])
        await bench.succeed(task, answer_of("half way"), run=run, chunks=2)
        assert joined_text(events_of((await call).text)) == "half way"


async def test_the_fleets_workers_are_in_the_metrics(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        await beat(bench, "a")
        await beat(bench, "b", state="loading")
        await beat(bench, "c", pool="of-somebody-else")
        await beat(bench, "d", quiet_s=1e6)

        async def shown() -> list[str]:
            text = (await client.get("/metrics")).text
            return sorted(line for line in text.splitlines() if line.startswith("chimera_fleet_workers{"))

        async with asyncio.timeout(10):
            while len(lines := await shown()) < 4:
                await asyncio.sleep(0.05)
    assert lines == [
        'chimera_fleet_workers{pool="chat-fast",state="dead"} 1.0',
        'chimera_fleet_workers{pool="chat-fast",state="loading"} 1.0',
        'chimera_fleet_workers{pool="chat-fast",state="ready"} 1.0',
        'chimera_fleet_workers{pool="other",state="ready"} 1.0',
    ]
