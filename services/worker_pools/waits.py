"""Waiting for one of several things, or for a condition, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOK_S = 0.02


async def event_set(event: asyncio.Event) -> None:
    await event.wait()


async def first_of(*tasks: asyncio.Task[None]) -> None:
    """Returns when one of them is over, and raises what it raised."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def until(over: Callable[[], bool], within_s: float) -> None:
    """Returns once `over` holds, or after `within_s`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + within_s
    while not over() and loop.time() < until_s:
        await asyncio.sleep(_LOOK_S)
