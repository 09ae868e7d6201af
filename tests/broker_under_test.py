"""What the `broker` fixture yields, and the few client calls that tests of brokers share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from services.adapters.kafka.traits import BrokerKind, BrokerTraits, traits_of


class RunningBroker(Protocol):
    """Both launchers, as far as tests that don't care which one need them."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def rss_bytes(self) -> int: ...


class BrokerUnderTest(NamedTuple):
    """A broker of the session: unpack it, or use `launcher` to freeze and thaw it."""

    kind: BrokerKind
    bootstrap_servers: str
    traits: BrokerTraits
    launcher: RunningBroker

    @classmethod
    def of(cls, kind: BrokerKind, launcher: RunningBroker) -> BrokerUnderTest:
        """Return the entry of a running broker."""
        return cls(kind, launcher.bootstrap_servers, traits_of(kind), launcher)


@asynccontextmanager
async def producer(broker: BrokerUnderTest, **options: Any) -> AsyncIterator[Any]:
    """An acks=all producer with the broker's traits."""
    settings = {"acks": "all", "enable_idempotence": broker.traits.idempotent_producer, **options}
    client = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def reader(broker: BrokerUnderTest, *partitions: TopicPartition, **options: Any) -> AsyncIterator[Any]:
    """A consumer without a group, assigned to `partitions`, from the beginning."""
    client = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        enable_auto_commit=False,
        fetch_max_wait_ms=broker.traits.fetch_max_wait_ms["interactive"],
        **{"auto_offset_reset": "earliest", **options},
    )
    await client.start()
    try:
        client.assign(list(partitions))
        yield client
    finally:
        await client.stop()


async def read(client: Any, count: int, polls: int = 50) -> list[Any]:
    """Return the next `count` records, fewer if `polls` polls of 200 ms bring no more."""
    records: list[Any] = []
    for _ in range(polls):
        for batch in (await client.getmany(timeout_ms=200)).values():
            records += batch
        if len(records) >= count:
            break
    return records
