"""Records that Kafka allows other producers to write and we would not: each is read, no log stops at one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from services.ports import StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import Calls, KafkaParts, read

_CRC_AT, _CRC_FROM = 17, 21  # in a batch


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


class _Renamed:
    """A builder of batches that writes other bytes for a header's name, as clients of other languages can."""

    def __init__(self, builder: Any, name: bytes, bytes_of_it: bytes) -> None:
        self._builder, self._name, self._bytes_of_it = builder, name, bytes_of_it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def build(self) -> bytearray:
        built = bytearray(self._builder.build()).replace(self._name, self._bytes_of_it)
        built[_CRC_AT:_CRC_FROM] = struct.pack(">I", calc_crc32c(bytes(built[_CRC_FROM:])))
        return built


@pytest.mark.parametrize("lonely", [True, False])
async def test_a_header_name_that_is_not_utf_8_is_read_with_all_that_follows(
    broker: BrokerUnderTest, fleet_prefix: str, lonely: bool
) -> None:
    """The library raised at it at each reading: worker and ingress died of one record, always again (Q3)."""
    parts = KafkaParts(fleet_prefix, broker)
    try:
        topic = await parts.topic(1)
        calls, reader = Calls(), parts.new_reader(topic, [0])
        parts.stop_later(reader)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"before")
            batch = producer.create_batch()
            if not lonely:
                batch.append(key=None, value=b"first", timestamp=5, headers=[("type", b"t")])
            batch.append(key=b"k", value=b"strange", timestamp=5, headers=[("QQ", b"x"), ("v", b"1")])
            batch._builder = _Renamed(batch._builder, b"QQ", b"\xff\xfe")
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))
            await producer.send_and_wait(topic, b"after")
        source = await parts.source(topic, calls)
        await reader.start(at=StartAt("beginning"))
        expected = [b"before", *([] if lonely else [b"first"]), b"strange", b"after"]
        for records in (await read(reader, len(expected)), await read(source, len(expected))):
            assert [record.value for record in records] == expected
            assert [record.offset for record in records] == list(range(len(expected)))
            assert records[-2].headers == (("\\xff\\xfe", b"x"), ("v", b"1"))
            assert records[-2].key == b"k"
    finally:
        await parts.stop()
