"""Q11: a large body is parsed beside the event loop, a small one at once."""

from __future__ import annotations

import asyncio

import orjson

from services.ingress.body import admit_body


async def _parsed_in_one_turn(words: int) -> bool:
    """Whether nobody else had a turn meanwhile."""
    raw = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "word " * words}]})
    task = asyncio.create_task(admit_body("chat", raw))
    await asyncio.sleep(0)
    at_once = task.done()
    assert (await task).model == "auto"
    return at_once


async def test_a_prompt_of_a_megabyte_and_a_half_does_not_hold_the_loop() -> None:
    assert await _parsed_in_one_turn(10)
    assert not await _parsed_in_one_turn(300_000)
