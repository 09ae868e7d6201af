"""Tokens of one try: the backend's own count where there is one, else an estimate that says so.

A count is taken once, from the last usage that the backend gave; an explicit 0 stays 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from schemas.messages import Usage

_BYTES_PER_TOKEN = 4  # of English under the usual vocabularies; an estimate, and marked as one


def estimated_tokens(size_bytes: int) -> int:
    return -(-size_bytes // _BYTES_PER_TOKEN)


def text_tokens(words: str) -> int:
    """A rough count without a tokenizer: four characters a token in ASCII, two in any other script."""
    return -(-len(words) // (4 if words.isascii() else 2))


def counted(told: Mapping[str, Any] | None, *, prompt_bytes: int, output_tokens: Callable[[], int]) -> Usage:
    """`told` is the backend's usage object; the others are what stands in for counts that it left out.

    One that says `estimated` itself is believed: a share of a call's usage, or a fleet behind this one.
    """
    told = told or {}
    given_in, given_out = _count(told, "prompt_tokens"), _count(told, "completion_tokens")
    if given_out is None and given_in is not None and "total_tokens" in told:
        total = _count(told, "total_tokens")  # embeddings have no completion tokens
        given_out = None if total is None else max(0, total - given_in)
    details = told.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    return Usage.model_construct(
        input_tokens=estimated_tokens(prompt_bytes) if given_in is None else given_in,
        output_tokens=output_tokens() if given_out is None else given_out,
        cached_tokens=cached or 0,
        estimated=given_in is None or given_out is None or told.get("estimated") is True,
        cost_usd=0.0,
    )


def shown(told: Mapping[str, Any] | None, usage: Usage) -> dict[str, Any]:
    """The usage object for the client: the backend's own with all its details, or the estimate, marked."""
    if told is not None and not usage.estimated:
        return dict(told)
    return {
        **(told or {}),
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "estimated": True,
    }


def _count(told: Mapping[str, Any], name: str) -> int | None:
    value = told.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
