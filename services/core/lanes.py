"""Which lane is served next: smooth weighted round robin with a bound on how long a lane waits.

Smooth weighted round robin as in nginx's upstream module: at each pick every waiting lane gains its weight,
the richest is served and pays the sum of the waiting weights. Over a full round each gets its exact share.
"""

from collections.abc import Mapping
from types import MappingProxyType

from services.core.fleet import DEFAULT_WEIGHTS

WEIGHTS: Mapping[str, int] = MappingProxyType({str(name): weight for name, weight in DEFAULT_WEIGHTS.items()})
WAIT_BOUND_S = 10.0
# A lane becomes urgent before its bound, so that the bound holds with a slot coming free every 0.6 s.
_URGENT_SHARE = 0.8


class LanePicker:
    """Serves lanes by weight; one with work that went unserved for 8 of the 10 s goes first.

    The bound holds while picks come at least every 0.6 s; with rarer ones the lanes take turns.
    """

    __slots__ = ("_credit", "_since_s", "_urgent_after_s", "_weights")

    def __init__(self, weights: Mapping[str, int] = WEIGHTS, wait_bound_s: float = WAIT_BOUND_S) -> None:
        if not weights or min(weights.values()) < 1:
            raise ValueError("every lane needs a weight of at least 1")
        self._weights = dict(weights)
        self._urgent_after_s = wait_bound_s * _URGENT_SHARE
        self._credit = dict.fromkeys(weights, 0)
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
        self._credit[lane] = 0

    def pick(self, now_s: float) -> str | None:
        """The lane to serve, which counts as served; None when no lane has work."""
        if not self._since_s:
            return None
        lane = min(self._since_s, key=self._since_s.__getitem__)
        if now_s - self._since_s[lane] < self._urgent_after_s:
            lane = self._by_weight()
        self._since_s[lane] = now_s
        return lane

    def _by_weight(self) -> str:
        credit, total, best = self._credit, 0, ""
        for lane in self._weights:
            if lane not in self._since_s:
                continue
            weight = self._weights[lane]
            total += weight
            credit[lane] += weight
            if not best or credit[lane] > credit[best]:
                best = lane
        credit[best] -= total
        return best
