"""How many tries may run at once now: what the fleet file says, less what backends and device allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.core.fleet import Pool
from services.core.slot_limit import Answered, SlotLimit

_REFUSED = frozenset({FailureKind.RATE_LIMITED, FailureKind.OVERLOADED})
_WAITED = frozenset({FailureKind.FIRST_TOKEN_TIMEOUT, FailureKind.TOTAL_TIMEOUT})


class SlotBudget:
    """`limit` may change at any time; `on_change` is called when it grew.

    Each backend has a limit of its own; with `adaptive: false` none has. `device` says what is granted of a
    shared device: None where the pool shares none.
    """

    def __init__(self, pool: Pool) -> None:
        self._slots = pool.slots
        urls = pool.base_urls or ("",)
        self._limits = {url: SlotLimit(pool.min_slots, pool.slots) for url in urls} if pool.adaptive else {}
        self._backends = pool.slots
        self.device: Callable[[], int] | None = None
        self.on_change: Callable[[], None] = lambda: None

    @property
    def most(self) -> int:
        """The hard bound."""
        return self._slots

    @property
    def limit(self) -> int:
        return self._backends if self.device is None else min(self._backends, self.device())

    @property
    def backends(self) -> int:
        """What the backends can do with, whatever the device allows."""
        return self._backends

    def limits(self) -> Mapping[str, int]:
        """By backend; empty where they do not adapt."""
        return {url: limit.limit for url, limit in self._limits.items()}

    def has_room(self, base_url: str, in_flight: int) -> bool:
        limit = self._limits.get(base_url)
        return limit is None or in_flight < limit.limit

    def ended(
        self, base_url: str, now_s: float, failure: Failure | None, end: Answered, *, heard: bool
    ) -> None:
        """A try at a backend is over. `heard`: its latency is that of its first content; size and work are in
        tokens."""
        limit = self._limits.get(base_url)
        if limit is None:
            return
        kind, was = None if failure is None else failure.kind, limit.limit
        if kind in _REFUSED:
            limit.refused(now_s, end.started_s, end.in_flight)
        elif kind is None or heard or kind in _WAITED:
            limit.answered(now_s, end)
        if limit.limit == was:
            return
        before, self._backends = self._backends, min(self._slots, self._sum())
        if self._backends > before:
            self.on_change()

    def _sum(self) -> int:
        return sum(limit.limit for limit in self._limits.values())
