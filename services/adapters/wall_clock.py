"""The Clock port on the machine's own time."""

from __future__ import annotations

import asyncio
import time


class WallClock:
    def now_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
