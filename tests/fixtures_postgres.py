"""A real PostgreSQL for tests (a pytest plugin module)."""

import uuid
from collections.abc import AsyncIterator

import pytest_asyncio

from infra.postgres import PostgresServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server() -> AsyncIterator[PostgresServer]:
    """One server for the whole session. Do not kill or freeze it: start your own for that."""
    async with PostgresServer() as server:
        yield server


@pytest_asyncio.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """SQLAlchemy URL (postgresql+asyncpg) of an empty database that no other test has."""
    name = f"test_{uuid.uuid4().hex}"
    yield await postgres_server.create_database(name)
    await postgres_server.drop_database(name)
