"""Real model servers for tests (a pytest plugin module)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from infra.llama.process import LlamaServer
from infra.llama.settings import LlamaSettings


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llama_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlamaServer]:
    """SmolLM2 behind llama.cpp, shared by the whole session: leave no request running on it."""
    log_path = tmp_path_factory.mktemp("llama") / "server.log"
    async with LlamaServer(LlamaSettings(alias="smollm2", slots=2), log_path=log_path) as server:
        yield server
