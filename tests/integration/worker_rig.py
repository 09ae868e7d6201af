"""A worker on the in-memory broker in front of a model client: what a test says to it and hears of it."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import uuid_utils
from prometheus_client import CollectorRegistry

from schemas.codec import decode, encode, message_headers
from schemas.headers import TaskHeaders, to_text
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CancelTask,
    Message,
    ReplyChunk,
    RunTask,
    TaskFailed,
    TaskSucceeded,
)
from schemas.payload import Payload
from schemas.topics import PRIORITIES, Priority, TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.journal import DirectoryJournal
from services.adapters.model_backends.openai import OpenAIBackend
from services.adapters.wall_clock import WallClock
from services.core.fleet import BreakerLaw, Fleet, Pool, Timeouts
from services.ports import InRecord, ModelClient, OutRecord
from services.worker_pools.parts import WorkerParts
from services.worker_pools.pool_worker import PoolWorker
from services.worker_pools.settings import WorkerKnobs
from services.worker_pools.worker_metrics import WorkerMetrics
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource, FakeLogReader

PATIENCE_S = 20.0  # a bound for a hanging test, no promise
PARTITIONS = 2
NAMES = TopicNames("t.")
POOL = Pool(
    name="chat-fast",
    model="fast-1",
    backend_model="backend-name",
    slots=4,
    timeouts=Timeouts(connect_s=1, first_token_s=5, idle_s=5, total_s=30),
    breaker=BreakerLaw(min_calls=100_000),  # what is broken here on purpose is asked for by the task
)


async def until(what: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """What `what` returns once it is true; fails after `within_s`."""
    async with asyncio.timeout(within_s):
        while not (found := what()):
            await asyncio.sleep(0.01)
    return found


@dataclass
class Running:
    """A worker that serves: its task, its group sources by priority."""

    worker: PoolWorker
    task: asyncio.Task[None]
    sources: Mapping[Priority, FakeGroupSource]

    async def stop(self) -> None:
        self.worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await self.task

    async def kill(self, bus: FakeBus) -> None:
        """As SIGKILL: it says and does nothing any more, and its group finds out."""
        for source in self.sources.values():
            source._die()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for source in self.sources.values():
            await bus._leave(source)


class WorkerRig:
    """One fleet on one bus, of one pool unless there are `others`."""

    def __init__(
        self, client: ModelClient, blobs: Path, pool: Pool = POOL, others: tuple[Pool, ...] = (), **knobs: Any
    ) -> None:
        self.pool = pool
        self.fleet = Fleet(pools=(pool, *others), prefix=NAMES.prefix, partitions=PARTITIONS)
        topics = {spec.name: spec.partitions for spec in self.fleet.topics()}
        self.bus = FakeBus(topics, first_timestamp_ms=int(time.time() * 1000))
        self.client = client
        self.blobs = DirectoryBlobStore(blobs)
        self.journal = blobs / "journal"
        self.knobs = replace(WorkerKnobs(poll_ms=50, tick_s=0.05, commit_every_s=0.02, drain_s=5), **knobs)
        self.publisher = FakePublisher(self.bus)
        self._ids = itertools.count(1)
        self._workers: list[Running] = []
        self.reads_fleet_with: type[FakeLogReader] = FakeLogReader
        self.watched: dict[str, Any] = {}  # `look` and `connections`, where backends are asked beside tries

    async def work(
        self, worker_id: str = "worker-1", client: ModelClient | None = None, pool: Pool | None = None
    ) -> Running:
        """Starts a worker, of the rig's own pool unless another is named; returns once it is ready."""
        pool = pool or self.pool
        durable, chunks = FakePublisher(self.bus), FakePublisher(self.bus)
        await asyncio.gather(durable.start(), chunks.start())
        sources = {priority: self._source(pool.name, priority) for priority in PRIORITIES}
        parts = WorkerParts(
            lanes=sources,
            lane_source=self._source,
            control=FakeLogReader(self.bus, topic=NAMES.control, partitions=[0]),
            fleet=self.reads_fleet_with(self.bus, topic=NAMES.fleet, partitions=[0]),
            durable=durable,
            chunks=chunks,
            model=client or self.client,
            blobs=self.blobs,
            journal=DirectoryJournal(self.journal),
            clock=WallClock(),
            uniform=random.Random(1).random,
            new_attempt=lambda: str(uuid_utils.uuid7()),
            **self.watched,
        )
        metrics = WorkerMetrics(pool.name, CollectorRegistry())
        worker = PoolWorker(pool, self.fleet, worker_id, parts, self.knobs, metrics)
        running = Running(worker, asyncio.create_task(worker.run()), sources)
        self._workers.append(running)
        await until(lambda: running.task.done() or all(worker.ready().values()))
        if running.task.done():
            running.task.result()
        return running

    def _source(self, pool: str, priority: Priority) -> FakeGroupSource:
        return FakeGroupSource(
            self.bus, topic=NAMES.lane(pool, priority), group=NAMES.lane_group(pool, priority)
        )

    async def close(self) -> None:
        for running in self._workers:
            running.task.cancel()
        await asyncio.gather(*(running.task for running in self._workers), return_exceptions=True)

    async def submit(
        self,
        body: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        priority: Priority = "interactive",
        deadline_s: float = 60.0,
        partition: int = 0,
        headers: Mapping[str, Any] | None = None,
        payload: Payload | None = None,
        **fields: Any,
    ) -> str:
        """Puts a task on its lane and returns its id."""
        task_id = task_id or f"task-{next(self._ids)}"
        now_ms = int(time.time() * 1000)
        task = RunTask(
            task_id=task_id,
            pool=self.pool.name,
            priority=priority,
            arrived_ms=now_ms,
            body=payload or Payload(inline=chat() if body is None else dict(body)),
            **fields,
        )
        named = TaskHeaders(
            request_id=f"req-{task_id}",
            deadline_ms=now_ms + int(deadline_s * 1000),
            result_partition=1,
            reply_partition=1 if task.stream else None,
        ).with_changes(**(headers or {}))
        await self.raw(
            task_id.encode(), encode(task), named.to_wire(), priority=priority, partition=partition
        )
        return task_id

    async def raw(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        *,
        priority: Priority = "interactive",
        partition: int = 0,
    ) -> None:
        await self.publisher.start()
        lane = NAMES.lane(self.pool.name, priority)
        await self.publisher.send(OutRecord(lane, key, value, list(headers), partition), timeout_s=5)

    async def cancel(self, task_id: str, **fields: Any) -> None:
        await self.publisher.start()
        message = CancelTask(task_id=task_id, deadline_ms=int(time.time() * 1000) + 60_000, **fields)
        record = OutRecord(NAMES.control, task_id.encode(), encode(message), message_headers(message), 0)
        await self.publisher.send(record, timeout_s=5)

    # what is heard

    def results(self, task_id: str | None = None) -> list[Message]:
        """The records on `results`, in order; of one task if it is named."""
        found = [decode(to_text(record.headers), record.value) for record in self.bus.records(NAMES.results)]
        return [m for m in found if isinstance(m, Message) and task_id in (None, m.task_id)]

    def of(self, kind: type[Any], task_id: str | None = None) -> list[Any]:
        return [message for message in self.results(task_id) if isinstance(message, kind)]

    async def end(self, task_id: str) -> TaskSucceeded | TaskFailed:
        """The task's terminal record by the worker."""
        ends = await until(lambda: self.of(TaskSucceeded, task_id) + self.of(TaskFailed, task_id))
        found: TaskSucceeded | TaskFailed = ends[0]
        return found

    async def started(self, task_id: str) -> AttemptStarted:
        found: AttemptStarted = (await until(lambda: self.of(AttemptStarted, task_id)))[0]
        return found

    async def failed_try(self, task_id: str) -> AttemptFailed:
        found: AttemptFailed = (await until(lambda: self.of(AttemptFailed, task_id)))[0]
        return found

    async def answer(self, task_id: str) -> dict[str, Any]:
        """The whole answer of a task that succeeded."""
        end = await self.end(task_id)
        assert isinstance(end, TaskSucceeded), end
        if end.answer.claim is not None:
            found: dict[str, Any] = orjson.loads(
                await self.blobs.get(end.answer.claim.key, end.answer.claim.sha256)
            )
            return found
        whole: dict[str, Any] = end.answer.inline
        return whole

    def chunks(self, task_id: str) -> list[ReplyChunk]:
        found = [decode(to_text(record.headers), record.value) for record in self.bus.records(NAMES.replies)]
        return [m for m in found if isinstance(m, ReplyChunk) and m.task_id == task_id]

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        """What was streamed of a task that ended: all chunks that its end says there are."""
        end = await self.end(task_id)
        await until(lambda: len(self.chunks(task_id)) == end.chunks)
        return [event for chunk in self.chunks(task_id) for event in chunk.events]

    def dead(self) -> list[InRecord]:
        return self.bus.records(NAMES.dead)

    def committed(self, priority: Priority = "interactive", partition: int = 0) -> int:
        commit = self.bus.commits(NAMES.lane_group(self.pool.name, priority)).get(partition)
        return 0 if commit is None else commit.offset

    async def commits_reach(self, offset: int, partition: int = 0) -> None:
        await until(lambda: self.committed(partition=partition) >= offset)


def chat(text: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


def scripted(**script: Any) -> dict[str, Any]:
    """A chat whose model server behaves as told."""
    return chat(x_script=script)


def tries(name: str, *scripts: Mapping[str, Any]) -> dict[str, Any]:
    """A chat whose k-th call meets the k-th behaviour."""
    return chat(x_script={"id": name, "tries": list(scripts)})


def text_of(answer: Mapping[str, Any]) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def streamed_text(events: Sequence[Mapping[str, Any]]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for event in events for choice in event.get("choices", ())
    )


@asynccontextmanager
async def openai_rig(base_url: str, blobs: Path, pool: Pool = POOL, **knobs: Any) -> AsyncIterator[WorkerRig]:
    """A rig in front of a model server, closed at the end."""
    client = OpenAIBackend(slots=pool.slots)
    rig = WorkerRig(client, blobs, replace(pool, base_urls=(base_url,)), **knobs)
    try:
        yield rig
    finally:
        await rig.close()
        await client.aclose()
