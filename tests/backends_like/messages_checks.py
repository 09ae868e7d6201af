"""What Anthropic refuses in a Messages request, in its words: what a translation could get wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_FIELDS = frozenset(
    {
        "model",
        "max_tokens",
        "messages",
        "system",
        "metadata",
        "stop_sequences",
        "stream",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
        "output_config",
        "service_tier",
    }
)
_ID = re.compile(r"[a-zA-Z0-9_-]+")


def fault_in(body: Mapping[str, Any]) -> str | None:
    """The message of the 400, or None for a request that is taken."""
    for name in body:
        if name not in _FIELDS:
            return f"{name}: Extra inputs are not permitted"
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            return f"{name}: Field required"
    if not 0 <= body.get("temperature", 0) <= 1:
        return "temperature: range: 0..1"
    if set(body.get("metadata", {})) - {"user_id"}:
        return "metadata: Extra inputs are not permitted"
    return _fault_in_turns(body["messages"])


def _fault_in_turns(turns: Sequence[Mapping[str, Any]]) -> str | None:
    if not turns or turns[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    owed: set[str] = set()
    for at, turn in enumerate(turns):
        if turn["role"] not in ("user", "assistant"):
            return f'messages.{at}.role: Input should be "user" or "assistant"'
        blocks = turn["content"]
        if not blocks:
            return f"messages.{at}: all messages must have non-empty content"
        fault = _fault_in_blocks(blocks, at) or _fault_in_results(blocks, owed, at)
        if fault is not None:
            return fault
        owed = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return None


def _fault_in_blocks(blocks: Sequence[Mapping[str, Any]], at: int) -> str | None:
    for position, block in enumerate(blocks):
        path = f"messages.{at}.content.{position}"
        if block["type"] == "text" and not block["text"]:
            return "messages: text content blocks must be non-empty"
        call_id = block.get("id") or block.get("tool_use_id")
        if call_id is not None and not _ID.fullmatch(call_id):
            return f"{path}: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if block["type"] == "tool_use" and not isinstance(block["input"], dict):
            return f"{path}.tool_use.input: Input should be a valid dictionary"
    return None


def _fault_in_results(blocks: Sequence[Mapping[str, Any]], owed: set[str], at: int) -> str | None:
    """Each call is answered in the very next turn, before anything else in it."""
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if owed - set(answered):
        return f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after"
    if set(answered) - owed:
        return f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks"
    if [block["type"] for block in blocks[: len(answered)]] != ["tool_result"] * len(answered):
        return f"messages.{at}: `tool_result` blocks must come first"
    return None
