"""When a backend that said "not now" (429, 503, 529) may be asked again: back-pressure is no fault.

The time only ever grows while it lasts. With Retry-After it is that, ten minutes at most: a server that asks
for years is asked once more after them. Without, it is a quarter of a second, and doubles with each refusal
of a try that began after the last hold, up to eight seconds; an answer ends the doubling.
"""

from __future__ import annotations

FIRST_HOLD_S = 0.25
LONGEST_GUESS_S = 8.0
LONGEST_TOLD_S = 600.0


class BackPressure:
    """Of one backend. Times are seconds on the caller's clock."""

    __slots__ = ("_hold_s", "until_s")

    def __init__(self) -> None:
        self._hold_s = 0.0
        self.until_s = 0.0

    def refused(self, began_s: float, now_s: float, retry_after_s: float | None) -> None:
        """A try that began then was told "not now", perhaps with the seconds to wait."""
        if began_s >= self.until_s:  # else it was under way when the hold began, and says nothing new
            self._hold_s = min(LONGEST_GUESS_S, 2 * self._hold_s) if self._hold_s else FIRST_HOLD_S
        told_s = self._hold_s if retry_after_s is None else max(0.0, min(retry_after_s, LONGEST_TOLD_S))
        self.until_s = max(self.until_s, now_s + told_s)

    def answered(self) -> None:
        """It works again; a hold that stands stays."""
        self._hold_s = 0.0
