"""A record that is too large is refused for good, whatever makes it so, and nothing else is harmed by it."""

from __future__ import annotations

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from infra.kafka.node import KafkaNode
from schemas.topics import MAX_RECORD_BYTES
from services.ports import OutRecord, RecordTooLargeError, StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import BusParts, KafkaParts, read


async def test_too_large_is_told_apart_from_not_acknowledged(bus: BusParts) -> None:
    """By its value, or by its headers alone; what just fits is sent."""
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    reader = bus.new_reader(topic, [0])
    bus.stop_later(reader)
    await reader.start(at=StartAt("beginning"))
    for large in (
        OutRecord(topic, b"k", b"v" * MAX_RECORD_BYTES),
        OutRecord(topic, b"k", b"v", [("header", b"h" * MAX_RECORD_BYTES)]),
    ):
        with pytest.raises(RecordTooLargeError):
            await publisher.send(large, timeout_s=30)
        with pytest.raises(RecordTooLargeError):
            await (await publisher.post(large))
    room = MAX_RECORD_BYTES - OutRecord(topic, b"k", b"", [("header", b"h" * 1000)]).size_bytes()
    fits = OutRecord(topic, b"k", b"v" * room, [("header", b"h" * 1000)])
    assert fits.size_bytes() == MAX_RECORD_BYTES
    await publisher.send(fits, timeout_s=30)
    assert [len(record.value or b"") for record in await read(reader, 1)] == [room]


async def test_a_topic_that_takes_less_refuses_for_good_too(kafka_node: KafkaNode, fleet_prefix: str) -> None:
    """Only of a record that was alone in its batch it is known that it is the one."""
    parts = KafkaParts(fleet_prefix, BrokerUnderTest.of("kafka", kafka_node))
    topic = parts.named("small")
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_node.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "300000"})])
    await admin.close()
    try:
        publisher = await parts.publisher()
        with pytest.raises(RecordTooLargeError):
            await publisher.send(OutRecord(topic, b"k", b"v" * 400_000), timeout_s=30)
        await publisher.send(OutRecord(topic, b"k", b"v" * 200_000), timeout_s=30)
    finally:
        await parts.stop()
