"""What ended in the last seconds, by pool: rates and times for a live view. Bounded by time and by number."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.messages import AttemptFailed, Message, TaskFailed, TaskSucceeded

_MOST = 20_000  # of one pool


@dataclass(frozen=True, slots=True)
class PoolRates:
    """Per second and, in milliseconds, the 95th percentile. failures: of attempts, by kind, per second."""

    done: float = 0.0
    tokens: float = 0.0
    queue_ms: float = 0.0
    first_token_ms: float = 0.0
    failures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _End:
    at_s: float
    tokens: int
    queue_ms: float
    first_token_ms: float
    failure: str | None


class RecentEnds:
    """Times are seconds on the caller's clock."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._ends: defaultdict[str, deque[_End]] = defaultdict(lambda: deque(maxlen=_MOST))

    def heard(self, record: Message, now_s: float) -> None:
        """A record of `results` was read; those of tries that ended count."""
        if not isinstance(record, TaskSucceeded | TaskFailed | AttemptFailed) or record.run is None:
            return
        failure = None if isinstance(record, TaskSucceeded) else record.failure.kind.value
        timing = None if isinstance(record, AttemptFailed) else record.timing
        self._ends[record.run.pool].append(
            _End(
                now_s,
                0 if record.usage is None else record.usage.output_tokens,
                0.0 if timing is None else timing.queue_ms,
                0.0 if timing is None else timing.first_token_ms,
                failure,
            )
        )

    def rates(self, pool: str, now_s: float) -> PoolRates:
        ends = self._ends[pool]
        while ends and ends[0].at_s < now_s - self._window_s:
            ends.popleft()
        good = [end for end in ends if end.failure is None]
        failures = Counter(end.failure for end in ends if end.failure is not None)
        return PoolRates(
            len(good) / self._window_s,
            sum(end.tokens for end in ends) / self._window_s,
            _p95([end.queue_ms for end in good]),
            _p95([end.first_token_ms for end in good]),
            {kind: count / self._window_s for kind, count in failures.most_common()},
        )


def _p95(values: list[float]) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * 0.95))] if ranked else 0.0
