"""What the fleet file may say that a backend of each kind can do."""

from __future__ import annotations

from collections.abc import Sequence

from services.core.fleet import BackendKind

_OF_TOOLS = ("tools", "low_cost")
_NOT_ANTHROPIC = frozenset({"embed", "logprobs", "embeddings", "completions"})


def beyond(backend: BackendKind, field: str, said: Sequence[str]) -> str | None:
    """What of a pool's `capabilities` or `features` its backend cannot have, in words; None: all is well."""
    if backend == "anthropic":
        wrong = [name for name in said if name in _NOT_ANTHROPIC]
        return f"{', '.join(wrong)}: backend anthropic has nothing like it; expected chats" if wrong else None
    if backend not in ("http", "mcp"):
        return None
    if field == "features":
        return f"{', '.join(said)}: backend {backend} has tools, not models; expected none" if said else None
    if "tools" in said and set(said) <= set(_OF_TOOLS):
        return None
    return f"{', '.join(said)}: backend {backend} has tools, not models; expected {', '.join(_OF_TOOLS)}"
