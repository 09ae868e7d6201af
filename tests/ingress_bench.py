"""An ingress on a free port, an in-memory broker, a real SQLite store, and a worker played by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uuid_utils
from openai import AsyncOpenAI

from schemas.codec import decode, decode_as, encode, message_headers
from schemas.headers import TaskHeaders, to_text
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CancelTask,
    Failure,
    Message,
    ReplyChunk,
    RunTask,
    TaskClosed,
    TaskFailed,
    TaskSucceeded,
    Timing,
    Try,
    Usage,
)
from schemas.payload import Payload
from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.core.fleet import Fleet, Pool, Price
from services.core.life.errands import LogBatch
from services.core.life.rows import LifeLimits, LogEntry
from services.ingress.service import Ingress, IngressParts, instance_partition, running
from services.ingress.settings import IngressKnobs
from services.ports import OutRecord
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource, FakeLogReader

FLEET = Fleet(
    prefix="test.",
    partitions=4,
    pools=(
        Pool(
            name="chat-fast",
            model="small-1",
            slots=2,
            quality=0.3,
            price=Price(output_per_mtok=1.0),
            prior_seconds=1.0,
            context_tokens=2048,
        ),
        Pool(
            name="chat-strong",
            model="large-1",
            capabilities=frozenset({"chat", "coding"}),
            features=frozenset({"tools", "json_schema", "vision"}),
            slots=2,
            quality=0.9,
            price=Price(output_per_mtok=10.0),
            prior_seconds=4.0,
            context_tokens=8192,
        ),
    ),
)
LONGEST_S = 20.0  # what a test waits for before it says that something will not come


@dataclass(frozen=True)
class LaneTask:
    """A RunTask that the worker has taken, and the record it came in."""

    topic: str
    partition: int
    headers: TaskHeaders
    task: RunTask
    value: bytes

    def attempt(self) -> Try:
        return Try(
            attempt=str(uuid_utils.uuid7()),
            worker="w1",
            pool=self.task.pool,
            model=f"{self.task.pool}-model",
            started_ms=int(time.time() * 1000),
        )


class Bench:
    """The ingress under test, its bus, and what a worker would write."""

    def __init__(self, bus: FakeBus, ingress: Ingress, database: Database, fleet: Fleet) -> None:
        self.bus, self.ingress, self.database, self.fleet = bus, ingress, database, fleet
        self.names = TopicNames(fleet.prefix)
        self.port = 0
        self.publisher = FakePublisher(bus)
        self._taken: set[tuple[str, int, int]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=LONGEST_S)

    def openai(self, **options: Any) -> AsyncOpenAI:
        chosen = {"max_retries": 0, "timeout": LONGEST_S} | options
        return AsyncOpenAI(api_key="none", base_url=f"{self.url}/v1", **chosen)

    async def next_task(self) -> LaneTask:
        """The next lane record that was not taken yet; waits for it."""
        lanes = [topic for topic in self.bus._logs if topic.startswith(f"{self.fleet.prefix}tasks.")]

        def find() -> LaneTask | None:
            for topic in lanes:
                for record in self.bus.records(topic):
                    place = (topic, record.partition, record.offset)
                    if place in self._taken:
                        continue
                    self._taken.add(place)
                    headers = TaskHeaders.from_text(to_text(record.headers))
                    value = record.value or b""
                    return LaneTask(topic, record.partition, headers, decode_as(RunTask, value), value)
            return None

        task: LaneTask = await eventually(find)
        return task

    async def write(self, topic: str, key: str, message: Message, partition: int | None) -> None:
        record = OutRecord(topic, key.encode(), encode(message), message_headers(message), partition)
        await self.publisher.send(record, timeout_s=LONGEST_S)

    async def result(self, task: LaneTask, message: Message) -> None:
        await self.write(self.names.results, task.task.task_id, message, task.headers.result_partition)

    async def chunk(
        self, task: LaneTask, run: Try, seq: int, events: Sequence[dict[str, Any]], worker: str | None = None
    ) -> None:
        message = ReplyChunk(
            task_id=task.task.task_id, attempt=run.attempt, seq=seq, events=list(events), worker=worker
        )
        await self.write(self.names.replies, task.task.task_id, message, task.headers.reply_partition)

    async def started(self, task: LaneTask, run: Try) -> None:
        message = AttemptStarted(task_id=task.task.task_id, run=run, deadline_ms=task.headers.deadline_ms)
        await self.result(task, message)

    async def attempt_failed(self, task: LaneTask, run: Try, failure: Failure) -> None:
        message = AttemptFailed(
            task_id=task.task.task_id, run=run, ended_ms=1, usage=Usage(), failure=failure, next="local"
        )
        await self.result(task, message)

    async def succeed(
        self, task: LaneTask, answer: dict[str, Any], *, run: Try | None = None, chunks: int = 0
    ) -> None:
        message = TaskSucceeded(
            task_id=task.task.task_id,
            run=run or task.attempt(),
            ended_ms=int(time.time() * 1000),
            usage=Usage(input_tokens=7, output_tokens=3),
            answer=Payload(inline=answer),
            chunks=chunks,
            keep_answer=task.task.keep_answer,
            timing=Timing(queue_ms=1, first_token_ms=2, decode_ms=3),
        )
        await self.result(task, message)

    async def fail(self, task: LaneTask, failure: Failure, *, run: Try | None = None, **more: Any) -> None:
        message = TaskFailed(task_id=task.task.task_id, run=run, ended_ms=1, failure=failure, **more)
        await self.result(task, message)

    async def close(self, task: LaneTask, reason: Any) -> None:
        await self.result(task, TaskClosed(task_id=task.task.task_id, reason=reason, by="test", ended_ms=1))

    def said_of(self, task: LaneTask, topic: str) -> list[Any]:
        """What has been written about a task to a topic, in order."""
        key = task.task.task_id.encode()
        records = [record for record in self.bus.records(topic) if record.key == key]
        return [decode(to_text(record.headers), record.value) for record in records]

    async def closed(self, task: LaneTask, reason: str) -> None:
        """Returns once TaskClosed and then CancelTask are there."""
        control = await eventually(lambda: self.said_of(task, self.names.control))
        assert [(type(m), m.reason, m.deadline_ms) for m in control] == [
            (CancelTask, reason, task.headers.deadline_ms)
        ]
        closes = [m for m in self.said_of(task, self.names.results) if isinstance(m, TaskClosed)]
        assert [m.reason for m in closes] == [reason]

    async def bookkept(self, task: LaneTask) -> None:
        """The bookkeeper has turned what `results` has of a task into rows."""
        request_id, partition = task.headers.request_id, task.headers.result_partition
        now_ms = int(time.time() * 1000)
        said = self.said_of(task, self.names.results)
        entries = [LogEntry(partition, now_ms, request_id, message) for message in said]
        await SqlBookkeeperStore(self.database, LifeLimits()).apply(LogBatch(entries))


async def eventually(look: Callable[[], Any]) -> Any:
    """What `look` returns, once that is something."""
    async with asyncio.timeout(LONGEST_S):
        while not (found := look()):
            await asyncio.sleep(0.01)
    return found


async def eventually_true(look: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not await look():
            await asyncio.sleep(0.02)


def new_bus(fleet: Fleet = FLEET, *, first_timestamp_ms: int = 1_000) -> FakeBus:
    topics = {spec.name: spec.partitions for spec in fleet.topics()}
    return FakeBus(topics, first_timestamp_ms=first_timestamp_ms)


@asynccontextmanager
async def ingress_bench(
    directory: Path, *, bus: FakeBus | None = None, instance: str = "one", **parts: Any
) -> AsyncIterator[Bench]:
    """A running ingress. Several on one `bus` and in one `directory` are replicas of each other."""
    bus = bus or new_bus()
    url = f"sqlite+aiosqlite:///{directory}/chimera.db"
    await migrate(url)
    database = Database(url)
    partition = instance_partition(instance, FLEET)
    names = TopicNames(FLEET.prefix)
    made = IngressParts(
        fleet=FLEET,
        publisher=FakePublisher(bus),
        results=FakeLogReader(bus, topic=names.results, partitions=[partition]),
        replies=FakeLogReader(bus, topic=names.replies, partitions=[partition]),
        fleet_log=FakeLogReader(bus, topic=names.fleet, partitions=[0]),
        submissions=FakeGroupSource(bus, topic=names.submissions, group=names.submissions_group),
        blobs=DirectoryBlobStore(directory / "blobs", FLEET.prefix),
        keys=SqlIdempotencyStore(database),
        instance=instance,
        drain_s=2.0,
        knobs=IngressKnobs(ping_s=60.0),
    )
    ingress = Ingress(replace(made, **parts))
    bench = Bench(bus, ingress, database, FLEET)
    await bench.publisher.start()
    try:
        async with running(ingress, host="127.0.0.1", port=0, drain_s=2.0) as service:
            bench.port = service.port
            async with bench.http() as client:

                async def ready() -> bool:
                    return (await client.get("/readyz")).status_code == 200

                await eventually_true(ready)
            yield bench
    finally:
        await bench.publisher.stop()
        await database.close()
