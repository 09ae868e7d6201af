"""What the bus adapters make of clients that break or stop silently (CASES Q7)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from infra.kafka.node import KafkaNode
from services.ports import BusError, Commit, OutRecord, StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import Calls, KafkaParts, acknowledged, read, send_all, until, values

# Publishers that break


async def test_a_producer_out_of_sequence_is_replaced(kafka_node: KafkaNode, fleet_prefix: str) -> None:
    """The broker refuses every later batch of such a producer: only a new one can go on."""
    parts = KafkaParts(fleet_prefix, BrokerUnderTest.of("kafka", kafka_node))
    topic = await parts.topic(1)
    publisher = parts.new_publisher()
    await publisher.start()
    await publisher.send(OutRecord(topic, b"k", b"1"), timeout_s=30)
    numbers = publisher._producer._txn_manager
    for tp in list(numbers._sequence_numbers):
        numbers.increment_sequence_number(tp, 100)
    with pytest.raises(BusError, match="OutOfOrderSequence"):
        await publisher.send(OutRecord(topic, b"k", b"2"), timeout_s=30)
    await publisher.send(OutRecord(topic, b"k", b"3"), timeout_s=30)
    await publisher.stop()
    assert publisher.recreated == 1


async def test_a_producer_whose_sender_died_is_replaced(parts: KafkaParts) -> None:
    topic = await parts.topic(1)
    publisher = parts.new_publisher()
    parts.stop_later(publisher)
    await publisher.start()
    await publisher.send(OutRecord(topic, b"k", b"1"), timeout_s=30)
    producer = publisher._producer
    producer._message_accumulator.drain_by_nodes = None  # its next step raises, as a bug would
    producer._message_accumulator._waiter_future.set_result(None)
    await acknowledged(publisher, OutRecord(topic, b"k", b"2"))
    assert publisher.recreated == 1


async def test_a_fault_of_a_post_that_nobody_awaits_is_counted_and_troubles_nobody(parts: KafkaParts) -> None:
    topic = await parts.topic(1)
    publisher = parts.new_publisher()
    parts.stop_later(publisher)
    await publisher.start()
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await publisher.post(OutRecord(topic, None, b"v", partition=9))
    await publisher.post(OutRecord(topic, None, b"v" * 2_000_000, partition=0))
    await publisher.post(OutRecord(topic, None, b"v", partition=0))
    await publisher.stop()
    await publisher.post(OutRecord(topic, None, b"v", partition=0))
    await asyncio.sleep(0)
    gc.collect()
    assert publisher.post_faults == 3
    assert complaints == []


# Consumers that stop silently


async def fall_silent(consumer: Any) -> None:
    """The consumer fetches no more; its connections and its membership go on."""
    fetcher = consumer._fetcher
    tasks = {fetcher._fetch_task, *fetcher._pending_tasks}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_source_that_stopped_silently_is_restarted(parts: KafkaParts) -> None:
    topic = await parts.topic(1)
    publisher = await parts.publisher()
    source = parts.new_source(topic, parts.named("g"))
    parts.stop_later(source)
    calls = Calls()
    await source.start(calls)
    await send_all(publisher, values(topic, 0, 3))
    await read(source, 3)
    await source.commit({0: Commit(3)})
    await fall_silent(source._consumer)
    await send_all(publisher, values(topic, 0, 2, first=3))
    assert [record.offset for record in await read(source, 2)] == [3, 4]
    assert source.restarts == 1
    assert [what for what, _ in calls.told] == ["assigned", "revoked", "assigned"]


async def test_a_reader_that_stopped_silently_goes_on_where_it_was(parts: KafkaParts) -> None:
    topic = await parts.topic(2)
    publisher = await parts.publisher()
    reader = parts.new_reader(topic, [0, 1])
    parts.stop_later(reader)
    await reader.start(at=StartAt("end"))
    await send_all(publisher, values(topic, 0, 3))
    await read(reader, 3)
    await fall_silent(reader._consumer)
    await send_all(publisher, values(topic, 0, 2, first=3) + values(topic, 1, 1))
    records = await read(reader, 3)
    assert sorted((r.partition, r.offset) for r in records) == [(0, 3), (0, 4), (1, 0)]
    assert reader.restarts == 1


async def test_a_source_that_is_idle_or_not_polled_is_left_alone(parts: KafkaParts) -> None:
    topic = await parts.topic(2)
    publisher = await parts.publisher()
    source = parts.new_source(topic, parts.named("g"))
    parts.stop_later(source)
    await source.start(Calls())
    await send_all(publisher, values(topic, 0, 3))
    await read(source, 3)
    loop = asyncio.get_running_loop()
    idle_until = loop.time() + 3.5
    while loop.time() < idle_until:
        assert await source.poll(timeout_ms=200, max_records=10) == []
    await send_all(publisher, values(topic, 0, 1, first=3))
    await asyncio.sleep(3.5)  # back-pressure: there is lag, and nobody polls
    assert source.restarts == 0
    assert [record.offset for record in await read(source, 1)] == [3]


async def test_a_member_whose_coordination_died_joins_again(parts: KafkaParts) -> None:
    topic = await parts.topic(1)
    source = parts.new_source(topic, parts.named("g"))
    parts.stop_later(source)
    calls = Calls()
    await source.start(calls)
    await until(lambda: bool(calls.owned), source)
    source._consumer._coordinator._coordination_task.cancel()
    await until(lambda: len(calls.told) == 3 and bool(calls.owned))
    assert source.restarts == 1
