"""Brings a database to the newest schema. Several services may try at once: one does it, the others wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

from services.adapters.database.engine import Database
from services.ports import StoreError

_PAUSE_S = 0.05
_MIGRATING = 1 << 30  # as a partition's lock: no partition has this number


async def migrate(url: str, *, timeout_s: float = 30.0) -> None:
    """Runs the revisions that the database lacks, in one transaction. Raises StoreError."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    while True:
        try:
            await _migrated(url, timeout_s)
            return
        except StoreError as fault:
            # Two that switch a new file to WAL at once: SQLite refuses the second without waiting.
            if "database is locked" not in str(fault.__cause__) or loop.time() > give_up_s:
                raise
            await asyncio.sleep(_PAUSE_S)


async def _migrated(url: str, timeout_s: float) -> None:
    database = Database(url, timeout_s=timeout_s, pool_size=1)
    try:
        async with database.writing((_MIGRATING,)) as connection:
            await connection.run_sync(_upgrade)
    finally:
        await database.close()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
