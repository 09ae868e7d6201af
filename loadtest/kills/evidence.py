"""What a plain Kafka consumer and the ledger say: gathered without any service's help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from schemas.topics import PRIORITIES, TopicNames

TERMINAL = frozenset({"TaskSucceeded", "TaskFailed", "TaskClosed"})


@dataclass(slots=True)
class Evidence:
    """`accepted`: task_id -> request_id of every lane record. `terminals`: task_id -> (type, value)s in log
    order. `ledger` and `tasks`: rows by attempt and by task_id."""

    accepted: dict[str, str] = field(default_factory=dict)
    terminals: dict[str, list[tuple[str, Mapping[str, Any]]]] = field(default_factory=dict)
    ledger: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: dict[str, Mapping[str, Any]] = field(default_factory=dict)


async def gather(
    bootstrap: str, names: TopicNames, pools: Sequence[str], partitions: int, database_url: str
) -> Evidence:
    """Reads the whole log and all rows."""
    evidence = Evidence()
    lanes = [names.lane(pool, priority) for pool in pools for priority in PRIORITIES]
    for record in await read_all(bootstrap, lanes, partitions):
        headers = dict(record.headers)
        evidence.accepted[record.key.decode()] = headers.get("request_id", b"").decode()
    for record in await read_all(bootstrap, [names.results], partitions):
        kind = dict(record.headers).get("type", b"").decode()
        if kind in TERMINAL:
            value = orjson.loads(record.value)
            evidence.terminals.setdefault(record.key.decode(), []).append((kind, value))
    engine = create_async_engine(database_url)
    try:
        async with engine.connect() as connection:
            for table, key, rows in (
                ("ledger", "attempt", evidence.ledger),
                ("tasks", "task_id", evidence.tasks),
            ):
                query = text(f"SELECT * FROM {table}")  # noqa: S608 - the two literals above
                found = await connection.execute(query)
                rows.update({row[key]: dict(row) for row in found.mappings()})
    finally:
        await engine.dispose()
    return evidence


async def read_all(bootstrap: str, topics: Sequence[str], partitions: int) -> list[Any]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        everything = [TopicPartition(topic, index) for topic in topics for index in range(partitions)]
        consumer.assign(everything)
        await consumer.seek_to_beginning(*everything)
        ends = await consumer.end_offsets(everything)
        records: list[Any] = []
        left = {partition for partition in everything if ends[partition] > 0}
        while left:
            for partition, batch in (await consumer.getmany(timeout_ms=500)).items():
                records.extend(batch)
                if batch[-1].offset + 1 >= ends[partition]:
                    left.discard(partition)
        return records
    finally:
        await consumer.stop()
