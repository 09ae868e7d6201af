"""A backend in this process that takes the time its law says: fleets without models, work at no cost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import orjson

from schemas.failures import FailureKind
from services.adapters.model_backends.answer_bytes import Batch
from services.core.embedding_form import inputs_of
from services.core.fleet import SimulatedLaw
from services.core.usage import estimated_tokens
from services.ports import BackendFault, ModelCall, RandomUnit

_WORDS = ("the", "fleet", "answers", "with", "words", "that", "mean", "nothing", "and", "cost", "less")
_STEPS = 16  # batches of a streamed answer that takes time
_VECTOR = [0.0] * 8
Sleep = Callable[[float], Awaitable[Any]]
_REFUSED = {
    "reset": (FailureKind.RESET, "the simulated backend broke the connection", None),
    "rate_limited": (FailureKind.RATE_LIMITED, "the simulated backend limits the rate of requests", 429),
    "error": (FailureKind.SERVER_ERROR, "the simulated backend failed", 500),
}


class SimulatedBackend:
    """Answers every call by the law (core/fleet.SimulatedLaw). Where it takes no time it answers at once."""

    def __init__(self, law: SimulatedLaw, uniform: RandomUnit, sleep: Sleep = asyncio.sleep) -> None:
        self._law = law
        self._sleep = sleep
        self._uniform = uniform if law.seed is None else random.Random(law.seed).random
        self._slots = asyncio.Semaphore(law.slots) if law.slots else None
        self._queued = 0
        self._in_work = 0
        shares = [(each.name, getattr(law.failures, each.name)) for each in fields(law.failures)]
        self._failures = [(name, share) for name, share in shares if share > 0]
        self._timed = bool(law.mean_s or law.by_tokens)
        self._at_once = not self._timed and self._slots is None  # nothing is measured but what is around it
        self._words = [
            ("" if index == 0 else " ") + _WORDS[index % len(_WORDS)] for index in range(law.output_tokens)
        ]

    async def aclose(self) -> None:
        """Holds nothing."""

    async def answers(self, base_url: str) -> bool:  # noqa: ARG002 - the shape of all backends
        return True

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        law = self._law
        scale = 1 + law.spread * (2 * self._uniform() - 1)
        fate = _fate(self._failures, self._uniform())
        if fate is None and self._at_once and call.path.endswith("/chat/completions"):
            yield self._whole(True, self._usage(len(call.body)))
            return
        async with self._slot():
            if fate in _REFUSED:
                kind, message, status = _REFUSED[fate]
                raise BackendFault(kind, message, status=status)
            if fate == "hang":
                await self._sleep(call.timeouts.first_token_s)
                raise BackendFault(FailureKind.FIRST_TOKEN_TIMEOUT, "the simulated backend did not begin")
            usage = self._usage(len(call.body))
            answer = self._embedded if call.path.endswith("/embeddings") else self._said
            async for batch in answer(call, fate, scale, usage):
                yield batch

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """One of its own slots; raises BackendFault where too many wait for one."""
        slots, most = self._slots, self._law.queue
        if slots is not None:
            if slots.locked() and most is not None and self._queued >= most:
                message = "the simulated backend's queue is full"
                raise BackendFault(FailureKind.OVERLOADED, message, status=503)
            self._queued += 1
            try:
                await slots.acquire()
            finally:
                self._queued -= 1
        self._in_work += 1
        try:
            yield
        finally:
            self._in_work -= 1
            if slots is not None:
                slots.release()

    async def _embedded(
        self, call: ModelCall, fate: str | None, scale: float, usage: dict[str, int]
    ) -> AsyncIterator[Batch]:
        await self._pass(scale * (self._law.mean_s + self._law.prefill_s(usage["prompt_tokens"])))
        inputs = inputs_of(orjson.loads(call.body).get("input"))
        count = 0 if fate == "empty" or inputs is None else len(inputs.items)
        if fate == "interrupt":
            raise BackendFault(FailureKind.RESET, "the simulated backend broke off its answer")
        rows = [{"object": "embedding", "index": index, "embedding": _VECTOR} for index in range(count)]
        tokens = {"prompt_tokens": usage["prompt_tokens"], "total_tokens": usage["prompt_tokens"]}
        yield [{"object": "list", "data": rows, "usage": tokens}]

    async def _said(
        self, call: ModelCall, fate: str | None, scale: float, usage: dict[str, int]
    ) -> AsyncIterator[Batch]:
        chat = call.path.endswith("/chat/completions")
        if not self._timed and fate is None:
            yield self._whole(chat, usage)
            return
        size = -(-len(self._words) // _STEPS)
        steps = [self._words[at : at + size] for at in range(0, len(self._words), size)]
        if fate == "empty":
            steps = []
        await self._pass(scale * self._before(usage["prompt_tokens"]))
        for index, words in enumerate(steps):
            if index and fate == "interrupt":
                raise BackendFault(FailureKind.INTERRUPTED, "the simulated backend broke off its answer")
            # The first token came with the prefill.
            await self._pass(scale * self._step(len(words) - (index == 0), index, len(steps)))
            yield [_chunk(chat, word, None) for word in words]
        if fate == "interrupt":
            raise BackendFault(FailureKind.INTERRUPTED, "the simulated backend broke off its answer")
        yield [_chunk(chat, "", "stop", usage)]

    def _whole(self, chat: bool, usage: dict[str, int]) -> Batch:
        return [_chunk(chat, "".join(self._words), None), _chunk(chat, "", "stop", usage)]

    def _before(self, tokens_in: int) -> float:
        """Seconds to the first token."""
        law = self._law
        if law.by_tokens:
            return law.prefill_s(tokens_in) + law.step_s(self._in_work)
        return law.mean_s * law.ttft_share

    def _step(self, tokens: int, index: int, steps: int) -> float:
        """Seconds for the next `tokens`, of batch number `index` of the answer."""
        law = self._law
        if law.by_tokens:
            return tokens * law.step_s(self._in_work)
        return law.mean_s * (1 - law.ttft_share) / max(1, steps - 1) if index else 0.0

    async def _pass(self, seconds: float) -> None:
        if seconds > 0:
            await self._sleep(seconds)

    def _usage(self, body_bytes: int) -> dict[str, int]:
        tokens_in, tokens_out = estimated_tokens(body_bytes), self._law.output_tokens
        return {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        }


def _fate(shares: Sequence[tuple[str, float]], drawn: float) -> str | None:
    """Which failure a call meets, by a number in [0, 1); None: none."""
    for name, share in shares:
        drawn -= share
        if drawn < 0:
            return name
    return None


def _chunk(chat: bool, text: str, finish: str | None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {"content": text} if text else {}} if chat else {"text": text}
    event: dict[str, Any] = {"choices": [{"index": 0, **content, "finish_reason": finish}]}
    if usage is not None:
        event["usage"] = usage
    return event
