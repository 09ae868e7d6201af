"""`chimera loadtest durable`: no-op tasks from a lane to the ledger, on Apache Kafka and PostgreSQL."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import uuid_utils
from aiokafka import AIOKafkaProducer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from infra.postgres import PostgresServer
from loadtest.overhead.after import group_lag
from loadtest.stage import Stage, StageOptions, cpu_seconds, load_average
from schemas.codec import encode
from schemas.headers import TaskHeaders
from schemas.messages import RunTask
from schemas.payload import Payload
from schemas.topics import TopicNames

POOL = "no-op"
WAIT_S = 300.0
POLL_S = 0.25
DEADLINE_MS = 3_600_000
FLEET = f"""
version: 1
prefix: durable.
pools:
  - name: {POOL}
    model: no-op
    backend: simulated
    simulated: {{mean_s: 0.0, output_tokens: 1}}
    slots: 256
"""


@dataclass(frozen=True, slots=True)
class DurableReport:
    """From the worker's start to the last ledger row. `cpu_us` is CPU per task of each process."""

    tasks: int
    rows: int
    lag: int
    seconds: float
    worker_seconds: float
    cpu_us: Mapping[str, float]
    load: str

    def lines(self) -> list[str]:
        shares = ", ".join(f"{name} {us:.0f}" for name, us in sorted(self.cpu_us.items()))
        rate = self.tasks / self.seconds
        return [
            f"{self.tasks} tasks, {self.rows} ledger rows, lag {self.lag}; load {self.load}",
            f"{rate:.0f} tasks/s from the worker's start to the last row: {self.seconds:.1f} s",
            f"the worker's own start took {self.worker_seconds:.1f} s of them",
            f"CPU microseconds per task: {shares}",
        ]


async def run_durable(tasks: int, say: Callable[[str], None]) -> DurableReport:
    """Preloads `tasks`, starts the bookkeeper, then one worker. Raises AssertionError unless rows = tasks and
    nothing lags."""
    with tempfile.TemporaryDirectory(prefix="chimera-durable-") as folder:
        async with PostgresServer() as postgres:
            url = await postgres.create_database("durable")
            options = StageOptions(Path(folder), FLEET, "kafka", url, benchmark=True, start_services=False)
            async with Stage(options, lambda _: None) as stage:
                await stage.start_services(only=("orchestrator",))
                await _preload(stage, tasks)
                say(f"{tasks} tasks on the lane; load {load_average()}")
                return await _measure(stage, tasks)


async def _preload(stage: Stage, tasks: int) -> None:
    lane = TopicNames(stage.fleet.prefix).lane(POOL, "batch")
    producer = AIOKafkaProducer(
        bootstrap_servers=stage.bootstrap_servers, acks="all", linger_ms=5, max_batch_size=256 * 1024
    )
    await producer.start()
    now_ms = int(time.time() * 1000)
    body = Payload(inline={"messages": [{"role": "user", "content": "word " * 100}]})
    for number in range(tasks):
        task_id = str(uuid_utils.uuid7())
        headers = TaskHeaders(f"durable-{number}", now_ms + DEADLINE_MS, number % stage.fleet.partitions)
        task = RunTask(task_id=task_id, pool=POOL, priority="batch", arrived_ms=now_ms, body=body)
        await producer.send(
            lane,
            encode(task),
            key=task_id.encode(),
            headers=headers.to_wire(),
            partition=number % stage.fleet.partitions,
        )
    await producer.stop()


async def _measure(stage: Stage, tasks: int) -> DurableReport:
    worker = f"worker-{POOL}"
    before = cpu_seconds(stage.pids())
    begin = time.monotonic()
    engine = create_async_engine(stage.database_url)
    try:
        await stage.start_services(only=(worker,))
        started_s = time.monotonic() - begin
        rows = await _until_rows(engine, tasks, begin)
    finally:
        await engine.dispose()
    seconds = time.monotonic() - begin
    used = {name: cpu - before.get(name, 0.0) for name, cpu in cpu_seconds(stage.pids()).items()}
    lag = await _until_no_lag(stage)
    if rows != tasks or lag:
        raise AssertionError(f"{tasks} tasks, {rows} ledger rows, lag {lag}")
    cpu_us = {name: cpu / tasks * 1e6 for name, cpu in used.items()}
    return DurableReport(tasks, rows, lag, seconds, started_s, cpu_us, load_average())


async def _until_rows(engine: AsyncEngine, tasks: int, begin: float) -> int:
    query = text("SELECT count(*) FROM ledger WHERE state = 'ended'")
    rows = 0
    while rows < tasks and time.monotonic() - begin < WAIT_S:
        await asyncio.sleep(POLL_S)
        async with engine.connect() as connection:
            rows = int((await connection.execute(query)).scalar_one())
    return rows


async def _until_no_lag(stage: Stage) -> int:
    lag = await group_lag(stage)
    deadline = time.monotonic() + 10.0
    while lag and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
        lag = await group_lag(stage)
    return lag
