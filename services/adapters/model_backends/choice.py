"""Which client calls a pool's backends, by the `backend` of the fleet file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from services.adapters.model_backends.anthropic import AnthropicBackend
from services.adapters.model_backends.http_tool import HttpToolBackend
from services.adapters.model_backends.openai import OpenAIBackend
from services.adapters.model_backends.simulated import SimulatedBackend
from services.core.fleet import Pool, SimulatedLaw
from services.ports import ModelCall, RandomUnit


class PoolClient(Protocol):
    """A ports.ModelClient that can be asked whether a backend says anything at all."""

    def events(self, call: ModelCall) -> AsyncIterator[Sequence[dict[str, Any]]]: ...

    async def answers(self, base_url: str) -> bool: ...

    async def aclose(self) -> None: ...


def client_of(pool: Pool, environment: Mapping[str, str], uniform: RandomUnit) -> PoolClient:
    """Nothing is connected or started yet. `environment` has all of `pool.secret_names()`."""
    api_key = environment[pool.api_key_env] if pool.api_key_env else None
    if pool.backend == "simulated":
        return SimulatedBackend(pool.simulated or SimulatedLaw(), uniform)
    if pool.backend == "anthropic":
        return AnthropicBackend(slots=pool.slots, api_key=api_key)
    if pool.backend == "http":
        return HttpToolBackend(slots=pool.slots, api_key=api_key)
    if pool.backend == "mcp":
        # The SDK costs a second and 40 MB: only who has such tools pays.
        from services.adapters.model_backends.mcp_tools import McpBackend  # noqa: PLC0415 - as said above

        return McpBackend(pool.mcp, environment, timeouts=pool.timeouts, uniform=uniform, api_key=api_key)
    return OpenAIBackend(slots=pool.slots, api_key=api_key, azure=pool.azure)
