"""Time and chance, so that tests can own both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The wall clock and sleep, so that tests can own time."""

    def now_s(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


RandomUnit = Callable[[], float]
