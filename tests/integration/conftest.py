"""What most tests of a worker stand on: a model server of their own, and a rig in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.model_server.process import ModelServerProcess
from tests.integration.worker_rig import WorkerRig, openai_rig


@pytest.fixture
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=4) as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        yield made
