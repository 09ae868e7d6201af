"""A backend in this process that takes the time its law says: fleets without models, work at no cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson

from services.adapters.model_backends.answer_bytes import Batch
from services.core.fleet import SimulatedLaw
from services.core.usage import estimated_tokens
from services.ports import ModelCall, RandomUnit

_WORDS = ("the", "fleet", "answers", "with", "words", "that", "mean", "nothing", "and", "cost", "less")
_STEPS = 16  # batches of a streamed answer that takes time


class SimulatedBackend:
    """Answers every call after mean_s +- spread (a share). With a mean of 0 it answers at once."""

    def __init__(self, law: SimulatedLaw, uniform: RandomUnit) -> None:
        self._law = law
        self._uniform = uniform
        self._words = [
            ("" if index == 0 else " ") + _WORDS[index % len(_WORDS)] for index in range(law.output_tokens)
        ]

    async def aclose(self) -> None:
        """Holds nothing."""

    async def answers(self, base_url: str) -> bool:  # noqa: ARG002 - the shape of all backends
        return True

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        seconds = self._law.mean_s * (1 + self._law.spread * (2 * self._uniform() - 1))
        usage = self._usage(len(call.body))
        if call.path.endswith("/embeddings"):
            if seconds:
                await asyncio.sleep(seconds)
            yield [_embeddings(orjson.loads(call.body).get("input"), usage)]
            return
        chat = call.path.endswith("/chat/completions")
        if not seconds:
            yield [_chunk(chat, "".join(self._words), None), _chunk(chat, "", "stop", usage)]
            return
        await asyncio.sleep(seconds * self._law.ttft_share)
        size = -(-len(self._words) // _STEPS)
        steps = [self._words[at : at + size] for at in range(0, len(self._words), size)]
        pause_s = seconds * (1 - self._law.ttft_share) / max(1, len(steps) - 1)
        for index, words in enumerate(steps):
            if index:
                await asyncio.sleep(pause_s)
            yield [_chunk(chat, word, None) for word in words]
        yield [_chunk(chat, "", "stop", usage)]

    def _usage(self, body_bytes: int) -> dict[str, int]:
        tokens_in, tokens_out = estimated_tokens(body_bytes), self._law.output_tokens
        return {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }


def _chunk(chat: bool, text: str, finish: str | None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {"content": text} if text else {}} if chat else {"text": text}
    event: dict[str, Any] = {"choices": [{"index": 0, **content, "finish_reason": finish}]}
    if usage is not None:
        event["usage"] = usage
    return event


def _embeddings(texts: Any, usage: dict[str, int]) -> dict[str, Any]:
    count = len(texts) if isinstance(texts, list) else 1
    rows = [{"object": "embedding", "index": index, "embedding": [0.0] * 8} for index in range(count)]
    tokens = usage["prompt_tokens"]
    return {"object": "list", "data": rows, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
