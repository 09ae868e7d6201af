"""The buses that the contract is run on: the fake, the local broker and Apache Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import BusParts, FakeParts, KafkaParts


@pytest.fixture(params=["fake", "local", "kafka"])
def place(request: pytest.FixtureRequest) -> BrokerUnderTest | None:
    """The broker to run on; None for the fake."""
    if request.param == "local":
        local: LocalBroker = request.getfixturevalue("local_broker")
        return BrokerUnderTest.of("local", local)
    if request.param == "kafka":
        kafka: KafkaNode = request.getfixturevalue("kafka_node")
        return BrokerUnderTest.of("kafka", kafka)
    return None


@pytest.fixture
async def bus(place: BrokerUnderTest | None, fleet_prefix: str) -> AsyncIterator[BusParts]:
    parts = FakeParts(fleet_prefix) if place is None else KafkaParts(fleet_prefix, place)
    yield parts
    await parts.stop()


@pytest.fixture
async def parts(broker: BrokerUnderTest, fleet_prefix: str) -> AsyncIterator[KafkaParts]:
    """Parts on a broker of the session, with a watchdog that loses patience after two seconds."""
    parts = KafkaParts(fleet_prefix, broker, stall_s=2.0)
    yield parts
    await parts.stop()
