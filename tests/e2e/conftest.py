"""One fleet on the in-memory broker for all tests that only use it, and `openai` clients of it."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
import pytest_asyncio

from infra.llama.process import LlamaServer
from tests.e2e.asked import Sent
from tests.e2e.staged import Scripted, scripted_fleet

REAL_POOL = """
  - name: real
    model: smollm2
    base_url: {base_url}
    slots: 2
    features: [json_object, completions]
    context_tokens: 2048
    quality: 0.1
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    llama_server: LlamaServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripted]:
    """Pools `scripted` and `real` (SmolLM2). Do not kill its processes: start your own fleet for that."""
    pools = REAL_POOL.format(base_url=llama_server.base_url)
    async with scripted_fleet(tmp_path_factory.mktemp("fleet"), "local", more_pools=pools) as running:
        yield running


@pytest.fixture
def sent() -> Sent:
    """What `client` sends."""
    return Sent()


@pytest_asyncio.fixture(loop_scope="module")
async def client(fleet: Scripted, sent: Sent) -> AsyncIterator[openai.AsyncOpenAI]:
    """With the retries that the package ships with."""
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [sent.on_request]}, trust_env=False)
    async with openai.AsyncOpenAI(base_url=fleet.base_url, api_key="unused", http_client=http) as made:
        yield made


@pytest.fixture
def sync_client(fleet: Scripted) -> Iterator[openai.OpenAI]:
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=fleet.base_url, api_key="unused", http_client=http) as made:
        yield made
