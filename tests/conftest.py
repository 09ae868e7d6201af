"""Fixtures for all tests: the two brokers, one of each for a session, and a fleet prefix of one's own."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from infra.kafka.jars import JarsUnavailableError, kafka_version
from infra.kafka.node import KafkaNode, available
from infra.local_broker import LocalBroker
from tests.broker_under_test import BrokerUnderTest

# How long an example takes says something of the machine, not of the code.
settings.register_profile("no time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no time")

pytest_plugins = ["tests.fixtures_models", "tests.fixtures_postgres", "tests.no_skips"]


def pytest_report_header() -> str:
    """Say once, at the top, why tests on Apache Kafka will be skipped."""
    reason = available()
    return f"Apache Kafka: {reason or kafka_version()}"


def _no_kafka(reason: str) -> None:
    """Skip under one reason, or fail where the environment promises a Kafka (.ci/run does)."""
    if os.environ.get("CHIMERA_REQUIRE_KAFKA") == "1":
        pytest.fail(f"CHIMERA_REQUIRE_KAFKA=1, but: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka_possible() -> None:
    """Skips (or fails) a test that starts its own Kafka where that cannot run."""
    reason = available()
    if reason is not None:
        _no_kafka(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kafka_node(
    kafka_possible: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KafkaNode]:
    """One Apache Kafka for the whole session. Do not kill it: start your own for that."""
    node = KafkaNode.single(tmp_path_factory.mktemp("kafka"))
    try:
        await node.start()
    except JarsUnavailableError as error:  # Maven without a way to its repository
        _no_kafka(str(error))
    try:
        yield node
    finally:
        await node.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalBroker]:
    """One in-memory broker for the whole session. Do not kill it: start your own for that."""
    async with LocalBroker(tmp_path_factory.mktemp("local-broker")) as broker:
        yield broker


@pytest.fixture(scope="session", params=["local", "kafka"])
def broker(request: pytest.FixtureRequest) -> BrokerUnderTest:
    """Each broker in turn: its kind, bootstrap servers and traits."""
    if request.param == "local":
        local: LocalBroker = request.getfixturevalue("local_broker")
        return BrokerUnderTest.of("local", local)
    kafka: KafkaNode = request.getfixturevalue("kafka_node")
    return BrokerUnderTest.of("kafka", kafka)


@pytest.fixture
def fleet_prefix() -> str:
    """A prefix for topics, groups and blobs that no other test has."""
    return f"t{uuid.uuid4().hex[:10]}."


@pytest.fixture
def broker_dir(tmp_path: Path) -> Path:
    """A directory for a broker that a test starts for itself."""
    return tmp_path / "broker"
