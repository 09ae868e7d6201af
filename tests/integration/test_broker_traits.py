"""The table of broker traits says what the brokers do: each trait is provoked on both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, OffsetMetadataTooLargeError
from aiokafka.structs import OffsetAndMetadata

from tests.broker_under_test import BrokerUnderTest, producer, read, reader

_START_MS = 1_700_000_000_000


@pytest_asyncio.fixture
async def admin(broker: BrokerUnderTest) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=5000)
    await client.start()
    yield client
    await client.close()


@pytest_asyncio.fixture
async def batch(broker: BrokerUnderTest, admin: Any, fleet_prefix: str) -> TopicPartition:
    """A partition with 100 records in one batch, a second of time apart."""
    topic = f"{fleet_prefix}batch"
    await admin.create_topics([NewTopic(topic, 2, 1)])
    async with producer(broker, linger_ms=50) as sender:
        sends = [
            await sender.send(topic, b"v", key=b"k", partition=0, timestamp_ms=_START_MS + 1000 * number)
            for number in range(100)
        ]
        assert (await asyncio.gather(*sends))[-1].offset == 99
    return TopicPartition(topic, 0)


@asynccontextmanager
async def _member(broker: BrokerUnderTest, topic: str) -> AsyncIterator[Any]:
    """A member of the group named like its topic."""
    client = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        enable_auto_commit=False,
        session_timeout_ms=broker.traits.session_timeout_ms,
        heartbeat_interval_ms=broker.traits.heartbeat_interval_ms,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def test_commit_metadata(broker: BrokerUnderTest, admin: Any, batch: TopicPartition) -> None:
    """As many bytes come back as the trait says; one more is refused, or all are dropped in silence."""
    most = broker.traits.commit_metadata_bytes
    async with _member(broker, batch.topic) as client:
        await client.commit({batch: OffsetAndMetadata(1, "m" * 4096)})
        found = (await admin.list_consumer_group_offsets(batch.topic, partitions=[batch]))[batch]
        assert (found.offset, len(found.metadata)) == (1, most)
        if most:
            with pytest.raises(OffsetMetadataTooLargeError):
                await client.commit({batch: OffsetAndMetadata(1, "m" * (most + 1))})


async def test_end_offsets(broker: BrokerUnderTest, batch: TopicPartition) -> None:
    """Where they are not exact they are the first record of the last batch, plus one: never too late."""
    end = 100 if broker.traits.end_offsets else 1
    async with reader(broker, batch) as client:
        assert (await client.end_offsets([batch]))[batch] == end
        await client.position(batch)  # the reset to the beginning must be over: it may overtake the next one
        await client.seek_to_end(batch)
        assert await client.position(batch) == end
    async with reader(broker, batch, auto_offset_reset="latest") as client:
        assert await client.position(batch) == end


async def test_offsets_for_times(broker: BrokerUnderTest, batch: TopicPartition) -> None:
    async with reader(broker, batch) as client:
        found = await client.offsets_for_times({batch: _START_MS + 50_000})
    assert found[batch].offset == (50 if broker.traits.offsets_for_times else 0)


async def test_a_reader_can_start_exactly_at_the_end(broker: BrokerUnderTest, batch: TopicPartition) -> None:
    """From "latest", poll until the high-water mark is known, seek there: of an empty partition, too."""
    partitions = [batch, TopicPartition(batch.topic, 1)]
    async with reader(broker, *partitions, auto_offset_reset="latest") as client, producer(broker) as sender:
        while any(client.highwater(partition) is None for partition in partitions):
            await client.getmany(timeout_ms=50)
        for partition in partitions:
            client.seek(partition, client.highwater(partition))
        for partition in partitions:
            await sender.send_and_wait(batch.topic, b"new", key=b"k", partition=partition.partition)
        records = await read(client, 2)
        assert {(record.partition, record.offset, record.value) for record in records} == {
            (0, 100, b"new"),
            (1, 0, b"new"),
        }


async def test_idempotent_producer(broker: BrokerUnderTest, batch: TopicPartition) -> None:
    client = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, request_timeout_ms=5000
    )
    try:
        if broker.traits.idempotent_producer:
            await client.start()
            assert (await client.send_and_wait(batch.topic, b"v", partition=0)).offset == 100
        else:
            with pytest.raises(KafkaError):
                await client.start()
    finally:
        await client.stop()


async def test_a_topic_that_does_not_exist(broker: BrokerUnderTest, admin: Any, fleet_prefix: str) -> None:
    topic = f"{fleet_prefix}misspelt"
    async with producer(broker, request_timeout_ms=3000) as sender:
        if broker.traits.unknown_topic_refused:
            with pytest.raises(KafkaError):
                await sender.send_and_wait(topic, b"v")
        else:
            await sender.send_and_wait(topic, b"v")
    assert (topic in await admin.list_topics()) is not broker.traits.unknown_topic_refused


async def test_offsets_of_a_whole_group(broker: BrokerUnderTest, admin: Any, batch: TopicPartition) -> None:
    async with _member(broker, batch.topic) as client:
        await client.commit({batch: 7})
    if broker.traits.lists_group_offsets_whole:
        assert (await admin.list_consumer_group_offsets(batch.topic))[batch].offset == 7
    else:
        with pytest.raises(KafkaConnectionError):
            await admin.list_consumer_group_offsets(batch.topic)
