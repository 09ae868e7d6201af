"""A database as the stores use it: short transactions, short time-outs, one kind of error.

Law: whoever writes rows of a partition of `results` holds that partition's lock for the whole transaction
(PostgreSQL: advisory; SQLite: it has one writer anyway). Two bookkeepers that overlap in a rebalance so work
one after the other, and the later one finds a re-read, which changes nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from services.ports import RowsRefused, StoreError

_READS = "chimera_reads"
_NO_URL = "CHIMERA_DATABASE_URL: expected postgresql://user:password@host/name or sqlite:///path"
_LOCK_SPACE = 0x43484D52  # of PostgreSQL's advisory locks, so that others' numbers are not ours
# Drivers raise their own errors past SQLAlchemy while a connection is being made.
_LIBRARY_ERRORS = (
    SQLAlchemyError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection lost between two of the driver's own steps
    sqlite3.Error,
    OSError,
    TimeoutError,
    OverflowError,
)
_DATA_EXCEPTION = "22"  # class of SQLSTATE: the value itself is wrong, such as a NUL in a text


class Database:
    """An engine and its time-out. `timeout_s` bounds a whole transaction, the wait for a connection too."""

    def __init__(self, url: str, *, timeout_s: float = 5.0, pool_size: int = 4) -> None:
        self.url = _with_driver(url)
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self._timeout_s = timeout_s
        self.engine = (
            _postgres(self.url, timeout_s, pool_size)
            if self.is_postgres
            else _sqlite(self.url, timeout_s, pool_size)
        )

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def writing(self, partitions: Collection[int] = ()) -> AsyncIterator[AsyncConnection]:
        """One transaction that holds the locks of `partitions`; committed at the end of the body."""
        with translated_errors():
            async with asyncio.timeout(self._timeout_s), self.engine.begin() as connection:
                if self.is_postgres and partitions:
                    await connection.exec_driver_sql(
                        "SELECT pg_advisory_xact_lock($1::int, p) FROM unnest($2::int[]) AS p",
                        (_LOCK_SPACE, sorted(partitions)),
                    )
                yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        with translated_errors():
            async with asyncio.timeout(self._timeout_s), self.engine.connect() as plain:
                yield await plain.execution_options(**{_READS: True})

    async def ping(self) -> None:
        async with self.reading() as connection:
            await connection.exec_driver_sql("SELECT 1")


class translated_errors:  # noqa: N801 - used as a statement
    """Library errors become StoreError, or RowsRefused where the values themselves were refused."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, _LIBRARY_ERRORS):
            # Only the kind: the text of a driver's error may quote rows.
            name = type(getattr(error, "orig", None) or error).__name__
            refused = isinstance(error, OverflowError) or _refuses_values(error)
            raise (RowsRefused if refused else StoreError)(f"database: {name}") from error


def _refuses_values(error: BaseException) -> bool:
    if isinstance(error, DataError | IntegrityError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    cause = getattr(error.orig, "__cause__", None)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    return state.startswith(_DATA_EXCEPTION) or isinstance(cause, ValueError | OverflowError)


def _with_driver(url: str) -> URL:
    """Raises ValueError; the text never has the URL, for a password may be in it."""
    try:
        made = make_url(url)
    except ArgumentError:
        raise ValueError(_NO_URL) from None
    if made.get_backend_name() not in ("postgresql", "sqlite"):
        raise ValueError(_NO_URL)
    drivers = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}
    return made.set(drivername=drivers.get(made.drivername, made.drivername))


def _postgres(url: URL, timeout_s: float, pool_size: int) -> AsyncEngine:
    """The server's own limits end first, so that a slow statement is an error and no broken connection."""
    limit_ms = str(int(timeout_s * 800))
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=timeout_s,
        connect_args={
            "timeout": timeout_s,
            "command_timeout": timeout_s,
            "server_settings": {
                "application_name": "chimera",
                "statement_timeout": limit_ms,
                "lock_timeout": limit_ms,
                "idle_in_transaction_session_timeout": str(int(timeout_s * 2000)),
                "jit": "off",
                # A plan made while the tables were empty would read them whole for ever after.
                "plan_cache_mode": "force_custom_plan",
                "random_page_cost": "1.1",
            },
        },
    )


def _sqlite(url: URL, timeout_s: float, pool_size: int) -> AsyncEngine:
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=timeout_s,
        connect_args={"timeout": timeout_s * 0.6},
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _prepare(dbapi_connection: Any, _: Any) -> None:
        dbapi_connection.isolation_level = None  # the driver begins nothing by itself
        cursor = dbapi_connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could not get the lock: it takes it at once.
        reads = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine
