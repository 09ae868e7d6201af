"""How long tries take in a slot, as seen lately: by priority, and by predicted tokens where they are told."""

from __future__ import annotations

_NEWEST = 0.1  # weight of the newest try in a moving mean
_OVERRUN_REST = 0.5  # of the time it ran: who outlives its prediction may well go on


class ServiceTimes:
    """Moving means, seconds. `prior_s`: of a usual task, until some were seen."""

    __slots__ = ("_per_token_s", "_prior_s", "_usual_s", "_usual_tokens")

    def __init__(self, prior_s: float) -> None:
        self._prior_s = prior_s
        self._usual_s: dict[str, float] = {}
        self._per_token_s: float | None = None
        self._usual_tokens: dict[str, float] = {}

    def saw(self, priority: str, tokens: float, used: float, seconds: float) -> None:
        """A try that succeeded: its predicted weighted tokens (0: unknown), those it used, its seconds."""
        self._usual_s[priority] = _moved(self._usual_s.get(priority), seconds)
        if used > 0:
            self._usual_tokens[priority] = _moved(self._usual_tokens.get(priority), used)
        if tokens > 0:
            self._per_token_s = _moved(self._per_token_s, seconds / tokens)

    def usual_tokens(self, priority: str, otherwise: float) -> float:
        """Weighted tokens that tries of this priority used lately."""
        return self._usual_tokens.get(priority, otherwise)

    def expected_s(self, priority: str, tokens: float) -> float:
        """Of a task with that many predicted tokens; 0 where nobody predicted any."""
        if tokens > 0 and self._per_token_s is not None:
            return tokens * self._per_token_s
        return self._usual_s.get(priority, self._prior_s)

    def rest_s(self, priority: str, tokens: float, ran_s: float) -> float:
        """Predicted seconds to the end of a try that ran for `ran_s`."""
        left_s = self.expected_s(priority, tokens) - ran_s
        return left_s if left_s > 0 else ran_s * _OVERRUN_REST


def _moved(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _NEWEST * (newest - mean)
