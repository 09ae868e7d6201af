"""Which lane is served next: smooth weighted round robin with a bound on how long a lane waits.

Smooth weighted round robin as in nginx's upstream module: at each pick every waiting lane gains its weight,
the richest is served and pays the sum of the waiting weights. Over a full round each gets its exact share.

A weight is a least share, and turns that a lane had while nothing heavier waited count towards it: they pay
for as many turns (32 at most) that it would take from a heavier lane later. Without that, batch work that has
all the spare slots anyway would take one more of nine whenever interactive work queues.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from services.core.fleet import DEFAULT_WEIGHTS

WEIGHTS: Mapping[str, int] = MappingProxyType({str(name): weight for name, weight in DEFAULT_WEIGHTS.items()})
WAIT_BOUND_S = 10.0
# A lane becomes urgent before its bound, so that the bound holds with a slot coming free every 0.6 s.
_URGENT_SHARE = 0.8
_MOST_PREPAID = 32


class LanePicker:
    """Serves lanes by weight; one with work that went unserved for 8 of the 10 s goes first.

    The bound holds while picks come at least every 0.6 s; with rarer ones the lanes take turns.
    """

    __slots__ = ("_credit", "_prepaid", "_since_s", "_urgent_after_s", "_weights")

    def __init__(self, weights: Mapping[str, int] = WEIGHTS, wait_bound_s: float = WAIT_BOUND_S) -> None:
        if not weights or min(weights.values()) < 1:
            raise ValueError("every lane needs a weight of at least 1")
        self._weights = dict(weights)
        self._urgent_after_s = wait_bound_s * _URGENT_SHARE
        self._credit = dict.fromkeys(weights, 0)
        self._prepaid = dict.fromkeys(weights, 0)
        self._since_s: dict[str, float] = {}

    @property
    def lanes(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def arrived(self, lane: str, now_s: float) -> None:
        """The lane has work. Raises KeyError for an unknown lane."""
        if lane not in self._weights:
            raise KeyError(lane)
        self._since_s.setdefault(lane, now_s)

    def emptied(self, lane: str) -> None:
        """The lane has no work any more; it banks no credit for the time it is idle."""
        self._since_s.pop(lane, None)
        self._credit[lane] = self._prepaid[lane] = 0

    def pick(self, now_s: float, barred: Collection[str] = ()) -> str | None:
        """The lane to serve, which counts as served; None when no lane has work, or only barred ones."""
        waiting = [lane for lane in self._weights if lane in self._since_s and lane not in barred]
        if not waiting:
            return None
        lane = waiting[0] if len(waiting) == 1 else min(waiting, key=self._since_s.__getitem__)
        if now_s - self._since_s[lane] < self._urgent_after_s:
            lane = self._by_weight(waiting)
        self._since_s[lane] = now_s
        return lane

    def _by_weight(self, waiting: list[str]) -> str:
        weights, credit = self._weights, self._credit
        if len(waiting) == 1:  # gains and pays the same
            lane = waiting[0]
            self._prepaid[lane] = min(_MOST_PREPAID, self._prepaid[lane] + 1)
            return lane
        while True:
            for lane in waiting:
                credit[lane] += weights[lane]
            best = max(waiting, key=credit.__getitem__)
            credit[best] -= sum(weights[lane] for lane in waiting)
            if not any(weights[lane] > weights[best] for lane in waiting):
                self._prepaid[best] = min(_MOST_PREPAID, self._prepaid[best] + 1)
                return best
            if not self._prepaid[best]:
                return best
            self._prepaid[best] -= 1
