"""taskiq on Kafka: acks=all and an idempotent producer, a group that begins at the earliest record.

Its Kafka broker has no acknowledgement of a message: offsets are committed by the consumer's own timer.
"""

from __future__ import annotations

import asyncio
import sys

from taskiq_aio_kafka import AioKafkaBroker
from taskiq_redis import RedisAsyncResultBackend

from loadtest.peers.apps.lines import BROKER_URL, REDIS_URL, call_model, markers, told

results: RedisAsyncResultBackend[str] = RedisAsyncResultBackend(REDIS_URL)
broker = AioKafkaBroker(bootstrap_servers=BROKER_URL, kafka_topic="taskiq", result_backend=results)
broker.configure_producer(acks="all", enable_idempotence=True, request_timeout_ms=10_000)
broker.configure_consumer(
    group_id="taskiq", auto_offset_reset="earliest", session_timeout_ms=6000, heartbeat_interval_ms=1000
)


@broker.task(task_name="work")
async def work(marker: str) -> str:
    return await asyncio.to_thread(call_model, marker)


async def client() -> None:
    await broker.startup()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        marker = line.strip()
        try:
            await work.kicker().with_task_id(marker).kiq(marker)
        except Exception as fault:
            sys.stderr.write(f"{marker}: {type(fault).__name__}: {fault}\n")
        else:
            told(marker)
    await broker.shutdown()


async def outcomes() -> None:
    await results.startup()
    for marker in markers():
        if await results.is_result_ready(marker) and not (await results.get_result(marker)).is_err:
            told(marker)
    await results.shutdown()


if __name__ == "__main__":
    asyncio.run(client() if sys.argv[1] == "client" else outcomes())
