"""Which backends are watched beside their tries, and whose connections are counted."""

from __future__ import annotations

from services.adapters.model_backends.anthropic import AnthropicBackend
from services.adapters.model_backends.choice import PoolClient
from services.adapters.model_backends.openai import OpenAIBackend
from services.adapters.model_backends.server_look import ServerLook
from services.core.fleet import Pool
from services.ports import Connections


def look_of(pool: Pool) -> ServerLook | None:
    """None where any page may be anything: a function's own, or a tool's."""
    return ServerLook() if pool.backend in ("openai", "anthropic") else None


def connections_of(client: PoolClient) -> Connections | None:
    """None where it keeps none over HTTP, or keeps them to itself."""
    if isinstance(client, OpenAIBackend | AnthropicBackend):
        return client.connections
    return None
