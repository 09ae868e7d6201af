"""The floor: a record over a request topic to a process that sends one back over a reply topic.

`serve` is that process, `drive` the open-loop sender. Clients have the settings of the services' own.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from cyclopts import App

from loadtest.overhead.http_load import GRACE_S, Sample, until
from services.adapters.kafka.traits import BrokerKind, traits_of

app = App()
REQUESTS, REPLIES = "floor.requests", "floor.replies"
MAX_BATCH_BYTES = 256 * 1024


def _producer(bootstrap: str, broker: BrokerKind) -> AIOKafkaProducer:
    traits = traits_of(broker)
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=traits.idempotent_producer,
        linger_ms=0,
        max_batch_size=MAX_BATCH_BYTES,
    )


async def _reader(bootstrap: str, broker: BrokerKind, topic: str) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=traits_of(broker).fetch_max_wait_ms["results"],
    )
    await consumer.start()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    while await consumer.getmany(timeout_ms=300):
        continue  # what earlier rounds left
    return consumer


@app.command
def serve(*, bootstrap: str, broker: BrokerKind, ready_file: Path, reply_bytes: int) -> None:
    """Send each request's bytes back, as long as it is told, until killed."""

    async def main() -> None:
        producer, consumer = _producer(bootstrap, broker), await _reader(bootstrap, broker, REQUESTS)
        await producer.start()
        ready_file.write_text("ready")
        padding = b"x" * reply_bytes
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    await producer.send(REPLIES, padding, key=record.key, partition=0)

    uvloop.run(main())


@app.command
def drive(
    *, bootstrap: str, broker: BrokerKind, rate: float, seconds: float, request_bytes: int, out_file: Path
) -> None:
    """Send at `rate`, timed from the scheduled sends; write the samples."""
    samples = uvloop.run(_drive(bootstrap, broker, rate, seconds, request_bytes))
    out_file.write_text(json.dumps([asdict(sample) for sample in samples]))


async def _drive(
    bootstrap: str, broker: BrokerKind, rate: float, seconds: float, request_bytes: int
) -> list[Sample]:
    producer, consumer = _producer(bootstrap, broker), await _reader(bootstrap, broker, REPLIES)
    await producer.start()
    waiting: dict[bytes, tuple[Sample, float]] = {}
    receiving = asyncio.create_task(_receive(consumer, waiting))
    body = b"x" * request_bytes
    begin = time.monotonic() + 0.05
    samples: list[Sample] = []
    for index in range(int(rate * seconds)):
        due = begin + index / rate
        await until(due)
        sample = Sample(at_s=due - begin)
        samples.append(sample)
        key = str(index).encode()
        waiting[key] = (sample, due)
        await producer.send(REQUESTS, body, key=key, partition=0)
    give_up = time.monotonic() + GRACE_S
    while waiting and time.monotonic() < give_up:
        await asyncio.sleep(0.05)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await consumer.stop()
    await producer.stop()
    return samples


async def _receive(consumer: Any, waiting: dict[bytes, tuple[Sample, float]]) -> None:
    while True:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            now = time.monotonic()
            for record in records:
                found = waiting.pop(record.key, None)
                if found is not None:
                    sample, due = found
                    sample.done_s, sample.ok, sample.status = now - due, True, 200


if __name__ == "__main__":
    app()
