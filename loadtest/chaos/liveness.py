"""How soon after the last heal every pool answers by way of every ingress again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from httpx_aiohttp import HttpxAiohttpClient

from loadtest.chaos.load import Load

_EVERY_S = 0.5
_PATIENCE_S = 150.0  # ten times what is promised
_CALL_S = 30.0


async def until_live(
    load: Load, edges: Sequence[str], models: Sequence[str], healed_s: float
) -> float | None:
    """Seconds from the heal to the last first answer; None where one never came."""
    found = await asyncio.gather(*(_first(load, edge, model) for edge in edges for model in models))
    answered = [at_s for at_s in found if at_s is not None]
    return max(answered) - healed_s if len(answered) == len(found) else None


async def _first(load: Load, edge: str, model: str) -> float | None:
    """When a probe was first answered. One that is stuck does not keep the next from being sent."""
    deadline = time.monotonic() + _PATIENCE_S
    answered: list[float] = []
    async with HttpxAiohttpClient(timeout=_CALL_S, trust_env=False) as client:

        async def probe() -> None:
            told = await load.probe(client, edge, model)
            if told.complete:
                answered.append(told.ended_s)

        probes: set[asyncio.Task[None]] = set()
        while not answered and time.monotonic() < deadline:
            probes.add(newest := asyncio.create_task(probe()))
            await asyncio.wait({newest}, timeout=_EVERY_S)
            if not answered:
                await asyncio.sleep(_EVERY_S)
        await asyncio.gather(*probes)
    return min(answered, default=None)
