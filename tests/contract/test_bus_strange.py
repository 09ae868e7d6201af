"""Records that Kafka allows other producers to write and we would not: each is read, no log stops at one."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer

from services.ports import StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import Calls, KafkaParts, read


async def test_a_header_without_a_value_reads_as_an_empty_one(
    broker: BrokerUnderTest, fleet_prefix: str
) -> None:
    """What counted or joined header values failed on it, again at every restart (CASES Q3)."""
    parts = KafkaParts(fleet_prefix, broker)
    try:
        topic = await parts.topic(1)
        calls, reader = Calls(), parts.new_reader(topic, [0])
        parts.stop_later(reader)
        source = await parts.source(topic, calls)
        await reader.start(at=StartAt("beginning"))
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"value", headers=[("type", None), ("v", b"1")])
        for records in (await read(reader, 1), await read(source, 1)):
            assert records[0].headers == (("type", b""), ("v", b"1"))
    finally:
        await parts.stop()
