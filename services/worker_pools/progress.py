"""What the tries of a worker get on with: for its heartbeat, by which others see whether it stalls.

Law: silence adds up while something runs, over tries that follow each other: a backend that hangs is not
made lively by giving its tries up and starting others. Time without a try heals as fast as silence hurt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from schemas.failures import FailureKind

_WEIGHT = 0.2  # of the newest try in the mean duration
MOST_SHOWN = 256

# Ends that say nothing of the backend but that it was silent, or that nobody waited for it.
_SILENT = frozenset(
    {
        FailureKind.FIRST_TOKEN_TIMEOUT,
        FailureKind.IDLE_TIMEOUT,
        FailureKind.TOTAL_TIMEOUT,
        FailureKind.DEADLINE,
        FailureKind.CANCELLED,
        FailureKind.EVICTED,
        FailureKind.INTERNAL,
    }
)


class Progress:
    """`prior_s`: seconds of a usual task, until some were seen; `steady_s` is a clock that never jumps."""

    def __init__(self, prior_s: float, steady_s: Callable[[], float]) -> None:
        self._steady_s = steady_s
        self._running: Counter[str] = Counter()
        self._moved_s = self._idle_since_s = steady_s()
        self.service_s = prior_s

    @property
    def tasks(self) -> tuple[str, ...]:
        """Those with a try under way, 256 of them at most."""
        return tuple(islice(self._running, MOST_SHOWN))

    def began(self, task_id: str) -> float:
        """A try runs from now on; returns when that is, for `ended`."""
        began_s = self._steady_s()
        if not self._running:
            healed_s = 2 * (began_s - self._idle_since_s)
            self._moved_s = min(began_s, self._moved_s + healed_s)
        self._running[task_id] += 1
        return began_s

    def moved(self) -> None:
        """A running try said something."""
        self._moved_s = self._steady_s()

    def quiet_s(self) -> float:
        """Seconds for which tries ran and none of them got on; 0 while nothing runs."""
        return max(0.0, self._steady_s() - self._moved_s) if self._running else 0.0

    def ended(self, task_id: str, failure: FailureKind | None, began_s: float) -> None:
        """It is over. `failure` None: answered; INTERNAL where nobody knows."""
        now_s = self._steady_s()
        if failure not in _SILENT:
            self._moved_s = now_s
        if failure is None:
            self.service_s += _WEIGHT * (now_s - began_s - self.service_s)
        self._running[task_id] -= 1
        if self._running[task_id] <= 0:
            del self._running[task_id]
        if not self._running:
            self._idle_since_s = now_s
