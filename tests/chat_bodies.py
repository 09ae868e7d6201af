"""Bodies, answers, chunks and SSE text as OpenAI's clients and servers write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson


def answer_of(text: str, *, model: str = "small-1") -> dict[str, Any]:
    """A whole chat answer."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat stream."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "small-1",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "chat-fast", "messages": [{"role": "user", "content": "hi"}], **more}


def events_of(body: str) -> list[Any]:
    """The data of an SSE body: parsed JSON, and [DONE] as text; comments are left out."""
    blocks = [block for block in body.split("\n\n") if block.startswith("data: ")]
    return [data if (data := block[6:]) == "[DONE]" else orjson.loads(data) for block in blocks]


def joined_text(events: Sequence[Any]) -> str:
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in chunks)
