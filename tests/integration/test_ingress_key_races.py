"""A key whose caller was told of a failure while its task succeeds: the success stands, and is replayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from schemas.messages import Message
from services.adapters.database.store import SqlBookkeeperStore
from services.core.life.errands import LogBatch
from services.core.life.rows import LifeLimits, LogEntry
from tests.chat_bodies import answer_of, ask, delta, events_of, joined_text
from tests.ingress_bench import Bench, LaneTask, ingress_bench

KEY = {"idempotency-key": "order-1"}


def keyed(client: httpx.AsyncClient, *, stream: bool = False) -> asyncio.Task[httpx.Response]:
    sent = client.post("/v1/chat/completions", json=ask(stream=stream), headers=KEY)
    return asyncio.create_task(sent)


async def bookkept_as(bench: Bench, task: LaneTask, said: Sequence[Message]) -> None:
    """The rows of a log that has these records in this order."""
    request_id, partition = task.headers.request_id, task.headers.result_partition
    now_ms = int(time.time() * 1000)
    entries = [LogEntry(partition, now_ms, request_id, message) for message in said]
    await SqlBookkeeperStore(bench.database, LifeLimits()).apply(LogBatch(entries))


async def test_r6_a_task_that_succeeds_though_nobody_acknowledged_it_is_replayed(tmp_path: Path) -> None:
    """Its caller was told 503; in the log the success came before the close, which so changed nothing."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.lose_acks(1)
        assert (await keyed(client)).status_code == 503
        task = await bench.next_task()
        await bench.closed(task, "cancelled")
        await bench.succeed(task, answer_of("once"))
        close, success = bench.said_of(task, bench.names.results)
        again = keyed(client)
        await bookkept_as(bench, task, (success, close))
        assert (await again).json() == answer_of("once")


async def test_r6_a_stream_that_another_attempt_outlived_is_replayed(tmp_path: Path) -> None:
    """The stream broke, for it had followed another attempt; the task succeeded."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        first = keyed(client, stream=True)
        task = await bench.next_task()
        await bench.chunk(task, task.attempt(), 0, [delta(content="half")])
        await asyncio.sleep(0.1)
        await bench.succeed(task, answer_of("whole"), run=task.attempt())
        assert events_of((await first).text)[-1]["error"]["code"] == "stream_interrupted"
        await bench.bookkept(task)
        again = await keyed(client, stream=True)
        assert joined_text(events_of(again.text)) == "whole"
