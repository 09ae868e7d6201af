"""After the load: every attempt has one ledger row, and nothing lags. Asserted, not assumed."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from loadtest.stage import Stage
from schemas.topics import PRIORITIES, TopicNames
from services.adapters.kafka.traits import traits_of

WAIT_S = 60.0
POLL_S = 0.5


async def settled(stage: Stage, attempts: int) -> tuple[str, ...]:
    """Waits until the ledger has `attempts` ended rows and no group lags; raises AssertionError otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    rows, ended, lag = await _state(stage)
    while (ended < attempts or lag > 0) and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
        rows, ended, lag = await _state(stage)
    if rows != attempts or ended != attempts or lag != 0:
        raise AssertionError(f"{attempts} attempts, {rows} ledger rows, {ended} of them ended, lag {lag}")
    return (f"{attempts} attempts, {rows} ledger rows, lag {lag}",)


async def _state(stage: Stage) -> tuple[int, int, int]:
    engine = create_async_engine(stage.database_url)
    try:
        async with engine.connect() as connection:
            rows = (await connection.execute(text("SELECT count(*) FROM ledger"))).scalar_one()
            query = text("SELECT count(*) FROM ledger WHERE state = 'ended'")
            ended = (await connection.execute(query)).scalar_one()
    finally:
        await engine.dispose()
    return rows, ended, await group_lag(stage)


async def group_lag(stage: Stage) -> int:
    """Records not yet committed by the lanes' groups and the bookkeeper's."""
    names = TopicNames(stage.fleet.prefix)
    groups = {names.bookkeeper_group: names.results}
    for pool in stage.fleet.pools:
        for priority in PRIORITIES:
            groups[names.lane_group(pool.name, priority)] = names.lane(pool.name, priority)
    consumer = AIOKafkaConsumer(bootstrap_servers=stage.bootstrap_servers, auto_offset_reset="earliest")
    admin = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap_servers)
    await consumer.start()
    await admin.start()
    try:
        lag = 0
        for group, topic in groups.items():
            partitions = [TopicPartition(topic, index) for index in range(stage.fleet.partitions)]
            committed = await admin.list_consumer_group_offsets(group, partitions=partitions)
            ends = await _ends(consumer, partitions, exact=traits_of(stage.options.broker).end_offsets)
            lag += sum(max(0, ends[p] - max(0, committed[p].offset)) for p in partitions)
        return lag
    finally:
        await admin.close()
        await consumer.stop()


async def _ends(
    consumer: AIOKafkaConsumer, partitions: list[TopicPartition], *, exact: bool
) -> dict[TopicPartition, int]:
    if exact:
        return dict(await consumer.end_offsets(partitions))
    consumer.assign(partitions)
    await consumer.seek_to_end(*partitions)
    ends: dict[TopicPartition, int] = {}
    while len(ends) < len(partitions):
        await consumer.getmany(timeout_ms=300)
        ends |= {p: mark for p in partitions if (mark := consumer.highwater(p)) is not None}
    return ends
