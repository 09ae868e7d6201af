"""Whether a backend is healthy, slow or unavailable, by what its own tries show.

Thresholds, against the backend's own long run (a mean over about 200 tries, at least 10 of them):
- slow: of its last 8 tries within the window, at least 5, the median first token took more than slow_factor
  times as long as usual and 0.25 s longer, or the median token came slow_factor times slower;
- healthy again: both medians below halfway between that factor and 1, or fewer than 5 tries left in the
  window: a backend that is avoided gets another chance;
- slow at once: tries wait, and nothing at all has come from it for as long;
- unavailable: its breaker is not closed, it cannot be reached, loads its model, or asked for a rest of more
  than a second.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from schemas.fleet_messages import BackendHealth
from services.core.breaker import State
from services.core.fleet import BreakerLaw

RECENT = 8
ENOUGH = 5
SETTLED = 10  # tries before there is a usual time to compare with
_LONG_RUN = 200
_LEAST_EXCESS_S = 0.25
_JUDGED_S = 0.5  # without news nothing changes but by age
_LEAST_PIECES = 8  # of an answer whose speed says something


class _Measure:
    """Seconds of one kind: recent ones, and what is usual."""

    __slots__ = ("_recent", "count", "usual_s")

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self.count = 0
        self.usual_s = 0.0

    def add(self, now_s: float, seconds: float) -> None:
        self._recent.append((now_s, seconds))
        self.count = min(self.count + 1, _LONG_RUN)
        self.usual_s += (seconds - self.usual_s) / self.count

    def add_recent(self, now_s: float, seconds: float) -> None:
        """Not a time that it took: one after which it had not come."""
        self._recent.append((now_s, seconds))

    def ratio(self, since_s: float, least_excess_s: float = 0.0) -> float | None:
        """The recent median by the usual; None where too little is known."""
        while self._recent and self._recent[0][0] < since_s:
            self._recent.popleft()
        if self.count < SETTLED or len(self._recent) < ENOUGH or self.usual_s <= 0:
            return None
        now_s = median(seconds for _, seconds in self._recent)
        return 1.0 if now_s < self.usual_s + least_excess_s else now_s / self.usual_s


class Health:
    """Of one backend. Times are seconds on the caller's clock."""

    __slots__ = ("_first", "_judged_s", "_law", "_slow", "_token")

    def __init__(self, law: BreakerLaw) -> None:
        self._law = law
        self._first = _Measure()
        self._token = _Measure()
        self._slow = False
        self._judged_s = float("-inf")

    def answered(self, now_s: float, first_token_s: float, decode_s: float, pieces: int) -> None:
        """A try said something: when first, and how long it went on, in chunks with content."""
        self._judged_s = float("-inf")
        self._first.add(now_s, first_token_s)
        if pieces >= _LEAST_PIECES and decode_s > 0:
            self._token.add(now_s, decode_s / pieces)

    def waited(self, now_s: float, seconds: float) -> None:
        """A try ended, for whatever reason, and nothing had come for so long. Short waits say nothing."""
        if self._is_long(seconds):
            self._judged_s = float("-inf")
            self._first.add_recent(now_s, seconds)

    def state(self, now_s: float, breaker: State, *, reachable: bool, silent_s: float = 0.0) -> BackendHealth:
        """`silent_s`: how long tries have been waiting without a word from it, 0 where none waits."""
        if breaker != "closed" or not reachable:
            return "unavailable"
        if now_s - self._judged_s > _JUDGED_S:
            self._slow, self._judged_s = self._is_slow(now_s), now_s
        return "slow" if self._slow or self._is_long(silent_s) else "healthy"

    def _is_slow(self, now_s: float) -> bool:
        since_s = now_s - self._law.window_s
        first = self._first.ratio(since_s, _LEAST_EXCESS_S)
        token = self._token.ratio(since_s)
        worst = max(first or 0.0, token or 0.0)
        return worst > (self._halfway if self._slow else self._law.slow_factor)

    def _is_long(self, seconds: float) -> bool:
        usual_s = self._first.usual_s
        if self._first.count < SETTLED:
            return False
        return seconds > max(usual_s * self._law.slow_factor, usual_s + _LEAST_EXCESS_S)

    @property
    def _halfway(self) -> float:
        return (1.0 + self._law.slow_factor) / 2
