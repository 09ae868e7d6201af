"""When a try has gone on too long without what it owes: first content, next content, rate, total, deadline.

Pure: it says when the next guard is due and which one, on the caller's monotonic clock, in seconds.
"""

from __future__ import annotations

from schemas.failures import FailureKind
from services.core.fleet import Timeouts


class StreamGuards:
    """The guards of one try. Lifecycle frames are no content, so they push nothing back.

    The minimum rate holds for the whole of the content: the k-th piece is due `idle_s` + k / rate after the
    first.
    """

    __slots__ = ("_deadline_s", "_first_s", "_last_s", "_pieces", "_streaming", "_timeouts", "started_s")

    def __init__(self, timeouts: Timeouts, started_s: float, deadline_s: float, *, streaming: bool) -> None:
        self._timeouts = timeouts
        self.started_s = started_s
        self._deadline_s = deadline_s
        self._streaming = streaming
        self._first_s: float | None = None
        self._last_s = started_s
        self._pieces = 0

    @property
    def first_s(self) -> float | None:
        """When the first content came, or None."""
        return self._first_s

    @property
    def last_s(self) -> float:
        return self._last_s

    def saw(self, pieces: int, now_s: float) -> None:
        """`pieces` chunks with content came."""
        if self._first_s is None:
            self._first_s = now_s
        self._last_s = now_s
        self._pieces += pieces

    def due(self) -> tuple[float, FailureKind]:
        """The earliest time at which the try has failed unless more comes, and why."""
        timeouts = self._timeouts
        first = self._deadline_s, FailureKind.DEADLINE
        total_s = self.started_s + timeouts.total_s
        if total_s < first[0]:
            first = total_s, FailureKind.TOTAL_TIMEOUT
        if not self._streaming:
            return first
        if self._first_s is None:
            return min(first, (self.started_s + timeouts.first_token_s, FailureKind.FIRST_TOKEN_TIMEOUT))
        idle_s = self._last_s + timeouts.idle_s
        if idle_s < first[0]:
            first = idle_s, FailureKind.IDLE_TIMEOUT
        if timeouts.min_tokens_per_s > 0:
            slow_s = self._first_s + timeouts.idle_s + self._pieces / timeouts.min_tokens_per_s
            if slow_s < first[0]:
                first = slow_s, FailureKind.TOO_SLOW
        return first
