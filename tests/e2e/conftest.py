"""A fleet on the in-memory broker for each module that only uses it, and `openai` clients of it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

from infra.llama.process import LlamaServer
from tests.e2e.asked import Sent
from tests.e2e.staged import Scripted, scripted_fleet

# The modules that take longest begin first, so that processes of tests that share the work end together.
_LONGEST_FIRST = (
    "test_real_faults.py",
    "test_chaos.py",
    "test_leader_moves.py",
    "test_fleet_health.py",
    "test_rollouts.py",
    "test_make_up.py",
    "test_adoption.py",
    "test_long_tasks.py",
    "test_real_lanes.py",
    "test_real_devices.py",
    "test_submissions.py",
)

REAL_POOL = """
  - name: real
    model: smollm2
    base_url: {base_url}
    slots: 2
    features: [json_object, completions]
    context_tokens: 2048
    quality: 0.1
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(_LONGEST_FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)) if item.path.parent == here else -1)


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


@pytest_asyncio.fixture(loop_scope="module")
async def producer(fleet: Scripted) -> AsyncIterator[AIOKafkaProducer]:
    """Somebody who writes to topics without the ingress, and knows nothing of this project."""
    async with AIOKafkaProducer(bootstrap_servers=fleet.stage.bootstrap_servers, acks="all") as made:
        yield made
