"""Percentiles of samples, and whether a rate was held."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overhead.http_load import Sample

HELD_COMPLETED, HELD_GROWTH = 0.99, 1.5


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Latency:
        return Latency(*(round(percentile(seconds, share) * 1e3, 2) for share in (0.50, 0.95, 0.99)))

    @staticmethod
    def median(rounds: Sequence[Latency]) -> Latency:
        """Figure by figure over the rounds of one run."""
        return Latency(
            statistics.median(one.p50 for one in rounds),
            statistics.median(one.p95 for one in rounds),
            statistics.median(one.p99 for one in rounds),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One round. `growth` is the p95 of its last third over that of its first."""

    sent: int
    completed: int
    done: Latency
    first: Latency | None
    growth: float

    @property
    def held(self) -> bool:
        return self.completed >= HELD_COMPLETED * self.sent and self.growth <= HELD_GROWTH


def measured(samples: Sequence[Sample], *, stream: bool) -> Measured:
    good = [sample for sample in samples if sample.ok]
    third = max(1, len(samples) // 3)
    early = percentile([sample.done_s for sample in samples[:third] if sample.ok], 0.95)
    late = percentile([sample.done_s for sample in samples[-third:] if sample.ok], 0.95)
    return Measured(
        sent=len(samples),
        completed=len(good),
        done=Latency.of([sample.done_s for sample in good]),
        first=Latency.of([sample.first_s for sample in good]) if stream else None,
        growth=round(late / early, 2) if early > 0 else math.inf,
    )
