"""The orchestrator as a process on a real broker: killed by pid, stopped by SIGTERM, asked over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest_asyncio
from aiokafka import TopicPartition
from sqlalchemy import func, select

from infra.process import ChildProcess, free_port
from schemas.codec import encode, message_headers
from schemas.messages import Message
from schemas.topics import TopicNames, fleet_topics
from services.adapters.database import tables
from services.adapters.database.engine import Database
from services.adapters.kafka.topic_admin import apply
from services.ports import StoreError
from tests.broker_under_test import BrokerUnderTest, producer, read, reader
from tests.life_records import envelope_of, failed, started, succeeded

FLEET = """
version: 1
prefix: {prefix}
partitions: 2
pools:
  - name: chat-fast
    model: small
    backend: simulated
    simulated: {{mean_s: 0.0}}
"""


@dataclass
class Orchestrator:
    broker: BrokerUnderTest
    names: TopicNames
    database: Database
    folder: Path
    process: ChildProcess
    port: int = 0

    async def start(self) -> None:
        self.port = free_port()
        self.process.spawn(
            [sys.executable, "-m", "services.orchestrator"],
            env={
                **os.environ,
                "CHIMERA_KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers,
                "CHIMERA_BROKER": self.broker.kind,
                "CHIMERA_FLEET_FILE": str(self.folder / "fleet.yaml"),
                "CHIMERA_DATABASE_URL": str(self.database.url),
                "CHIMERA_HEALTH_PORT": str(self.port),
                "CHIMERA_TIME_SCALE": "0.2",
            },
        )

    async def ready(self) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(f"http://127.0.0.1:{self.port}/readyz")).status_code == 200
            except httpx.TransportError:
                return False

    async def say(self, *messages: Message, partition: int = 0) -> None:
        async with producer(self.broker) as client:
            for message in messages:
                await client.send_and_wait(
                    self.names.results,
                    encode(message),
                    key=message.task_id.encode(),
                    headers=message_headers(message, request_id="r"),
                    partition=partition,
                )

    async def count(self, table: str) -> int:
        try:
            async with self.database.reading() as connection:
                query = select(func.count()).select_from(tables.metadata.tables[table])
                return int((await connection.execute(query)).scalar_one())
        except StoreError:
            return 0  # not migrated yet


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def orchestrator(
    broker: BrokerUnderTest, fleet_prefix: str, tmp_path: Path
) -> AsyncIterator[Orchestrator]:
    names = TopicNames(fleet_prefix)
    await apply(fleet_topics(names, ["chat-fast"], 2), broker.bootstrap_servers, broker.traits)
    (tmp_path / "fleet.yaml").write_text(FLEET.format(prefix=fleet_prefix))
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/chimera.db")
    process = ChildProcess("orchestrator", tmp_path / "orchestrator.log")
    orchestrator = Orchestrator(broker, names, database, tmp_path, process)
    await orchestrator.start()
    try:
        yield orchestrator
    finally:
        await process.kill()
        await database.close()


async def test_killed_and_started_again_it_has_one_row_per_attempt_and_leaves_on_sigterm(
    orchestrator: Orchestrator,
) -> None:
    await until(orchestrator.ready)
    tasks = [f"t{number}" for number in range(40)]
    for task in tasks[:20]:
        await orchestrator.say(started(task, f"{task}-a"), succeeded(task, f"{task}-a"))

    async def some() -> bool:
        return await orchestrator.count("ledger") > 0

    await until(some)
    await orchestrator.process.kill()
    for task in tasks[20:]:
        await orchestrator.say(succeeded(task, f"{task}-a"), partition=1)
    await orchestrator.start()

    async def all_there() -> bool:
        return await orchestrator.count("tasks") == len(tasks)

    await until(all_there)
    assert await orchestrator.count("ledger") == len(tasks)
    assert await orchestrator.process.stop(grace_s=20) == 0


async def test_a_parked_task_goes_back_to_its_lane(orchestrator: Orchestrator) -> None:
    lane = orchestrator.names.lane("chat-fast", "interactive")
    park = failed("t", "a1", "parked", due_ms=1)
    envelope = envelope_of("t").model_copy(update={"lane": lane})
    envelope = envelope.model_copy(update={"headers": envelope.headers | {"deadline": str(10**15)}})
    await orchestrator.say(park.model_copy(update={"envelope": envelope}))
    places = [TopicPartition(lane, partition) for partition in range(2)]
    async with reader(orchestrator.broker, *places) as client:
        [record] = await read(client, 1, polls=300)
    assert (record.key, record.value) == (b"t", envelope.value.encode())
    assert dict(record.headers)["request_id"] == b"r-t"
