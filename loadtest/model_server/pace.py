"""When things are sent: scripted times, the server's own, or a latency law with slots, a queue and jitter.

The law: the first content comes `ttft_s + prefill_s_per_token * prompt tokens` after the head; a chunk of t
tokens takes `chunk_interval_s + t * (decode_s_per_token + decode_s_per_neighbour * (requests in work - 1))`
more.
"""

from __future__ import annotations

import asyncio
import random

from loadtest.model_server.script import Behaviour
from loadtest.model_server.settings import ServerSettings


class Slots:
    """How many requests are in work and how many queue, first come first served. `most` = 0: no limit."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most) if most else None
        self.busy = 0
        self.queued = 0

    async def take(self) -> None:
        if self._free is not None:
            self.queued += 1
            try:
                await self._free.acquire()
            finally:
                self.queued -= 1
        self.busy += 1

    def give_back(self) -> None:
        self.busy -= 1
        if self._free is not None:
            self._free.release()


class Pace:
    """The clock of one answer. Due times add up from the start, so a late wake-up does not delay the rest."""

    def __init__(
        self,
        settings: ServerSettings,
        behaviour: Behaviour,
        slots: Slots,
        tokens_in: int,
        draw: random.Random | None,
    ) -> None:
        self._settings = settings
        self._behaviour = behaviour
        self._slots = slots
        self._draw = draw
        self._tokens_in = tokens_in
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        scripted = behaviour.chunk_interval_s if behaviour.drip_s is None else behaviour.drip_s
        self._scripted_gap_s = scripted
        self._slowed_by_others = scripted is None and settings.decode_s_per_neighbour > 0

    async def first_byte(self) -> None:
        scripted = self._behaviour.delay_s
        self._add(self._jittered(self._settings.delay_s) if scripted is None else scripted)
        await self._wait()

    async def first_content(self) -> None:
        scripted = self._behaviour.ttft_s
        settings = self._settings
        own = settings.ttft_s + settings.prefill_s_per_token * self._tokens_in
        self._add(self._jittered(own) if scripted is None else scripted)
        await self._wait()

    async def gap(self, tokens: int) -> None:
        self._add(self.gap_s(tokens))
        await self._wait()

    async def gaps(self, tokens: list[int]) -> None:
        """All gaps of an unstreamed answer: one sleep, unless others in work change the speed meanwhile."""
        if self._slowed_by_others:
            for each in tokens:
                await self.gap(each)
            return
        for each in tokens:
            self._add(self.gap_s(each))
        await self._wait()

    def gap_s(self, tokens: int) -> float:
        if self._scripted_gap_s is not None:
            return self._scripted_gap_s
        settings = self._settings
        step_s = settings.step_s + settings.decode_s_per_neighbour * (self._slots.busy - 1)
        return self._jittered(settings.chunk_interval_s + tokens * step_s)

    def _jittered(self, seconds: float) -> float:
        if self._draw is None:
            return seconds
        return seconds * (1 + self._settings.jitter * self._draw.uniform(-1, 1))

    def _add(self, seconds: float) -> None:
        self._due += seconds

    async def _wait(self) -> None:
        left = self._due - self._loop.time()
        if left > 0:
            await asyncio.sleep(left)
