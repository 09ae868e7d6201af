"""The embedded PostgreSQL: what stores, chaos runs and load tests rely on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from infra.postgres import DURABLE, PostgresServer


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        yield connection
    finally:
        connection.terminate()


async def test_its_url_is_an_engine_s_url(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url)
    async with engine.connect() as connection:
        version = (await connection.execute(text("show server_version_num"))).scalar_one()
    await engine.dispose()
    assert int(version) >= 180000


async def test_each_database_is_empty_and_alone(postgres_server: PostgresServer, postgres_url: str) -> None:
    other = await postgres_server.create_database("An-other")
    async with connected(postgres_url) as one, connected(other) as two:
        await one.execute("create table kept (value int)")
        assert await two.fetchval("select to_regclass('kept')") is None
    await postgres_server.drop_database("An-other")


async def test_another_password_is_refused(postgres_server: PostgresServer) -> None:
    """Other users of the machine can reach the port, and a superuser may run programs."""
    address = urlsplit(postgres_server.url)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(f"postgresql://chimera:guess@127.0.0.1:{address.port}/postgres")


async def test_what_was_committed_survives_kill_and_stop() -> None:
    async with PostgresServer(settings=DURABLE) as server:
        url = await server.create_database("kept")
        async with connected(url) as connection:
            await connection.execute("create table kept (value int)")
            await connection.execute("insert into kept values (1)")
            family = [server.pid, *(child.pid for child in psutil.Process(server.pid).children())]
            await server.kill()
            assert not server.running
            assert not any(_runs(pid) for pid in family)
            gone = (
                asyncpg.PostgresConnectionError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
                OSError,
            )
            with pytest.raises(gone):
                await connection.fetchval("select 1")
        await server.start()
        async with connected(url) as connection:
            await connection.execute("insert into kept values (2)")
            await server.stop()
        await server.start()
        async with connected(url) as connection:
            assert await connection.fetchval("select array_agg(value order by value) from kept") == [1, 2]
        folder = server.folder
    assert not folder.exists()


async def test_frozen_it_answers_nothing_and_thawed_it_goes_on() -> None:
    async with PostgresServer() as server, connected(server.url) as connection:
        await server.freeze()
        answer = asyncio.ensure_future(connection.fetchval("select 42"))
        postmaster = psutil.Process(server.pid)
        states = {process.status() for process in [postmaster, *postmaster.children()]}
        assert states == {psutil.STATUS_STOPPED}
        assert not answer.done()
        server.thaw()
        assert await answer == 42
        await server.freeze()
        await server.stop()
        assert not server.running
