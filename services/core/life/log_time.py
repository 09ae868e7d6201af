"""The time that a partition of the log has reached, by its own records.

Rows fall due by record time, never by the wall clock alone: a reader that lags must not sweep what was
renewed in records it has not read, and a clock that jumps must not make everything due at once. While a log
that was read to its end stays silent, its time goes on by the *elapsed* seconds since its last record.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogTime:
    """record_ms: the time of the last record read; read_at_s: when it was read, by a steady clock."""

    record_ms: int
    read_at_s: float

    def now_ms(self, steady_s: float) -> int:
        """A lower bound of the log's time, provided that it has been read to its end."""
        return self.record_ms + int(max(0.0, steady_s - self.read_at_s) * 1000)
