"""The buses and the stores that the contracts are run on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import BusParts, FakeParts, KafkaParts
from tests.contract.store_parts import LIMITS


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


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/new/chimera.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest_asyncio.fixture
async def database(url: str) -> AsyncIterator[Database]:
    await migrate(url)
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
def store(database: Database) -> SqlBookkeeperStore:
    return SqlBookkeeperStore(database, LIMITS)


@pytest.fixture
def keys(database: Database) -> SqlIdempotencyStore:
    return SqlIdempotencyStore(database)
