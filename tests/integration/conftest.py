"""What most tests of a worker stand on, and those of the bookkeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from loadtest.model_server.process import ModelServerProcess
from services.adapters.model_backends.openai import OpenAIBackend
from tests.integration.bookkeeper_fleet import Fleet, fleet_on
from tests.integration.two_pools import QUICK, SPARE
from tests.integration.worker_rig import POOL, WorkerRig, openai_rig


@pytest.fixture
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=4) as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        yield made


@pytest.fixture
async def two(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    """Pools `chat-fast` and `spare` in front of one model server; no worker yet."""
    client = OpenAIBackend(slots=8)
    urls = (server.root_url,)
    rig = WorkerRig(
        client, tmp_path, replace(POOL, base_urls=urls), (replace(SPARE, base_urls=urls),), **QUICK
    )
    try:
        yield rig
    finally:
        await rig.close()
        await client.aclose()


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "chimera.db"


@pytest_asyncio.fixture
async def fleet(sqlite_path: Path) -> AsyncIterator[Fleet]:
    async with fleet_on(
        f"sqlite+aiosqlite:///{sqlite_path}", sqlite_path.parent / "blobs", timeout_s=1.0
    ) as fleet:
        yield fleet
