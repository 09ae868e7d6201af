"""One backend as its worker sees it: what runs there, and what is known of it."""

from __future__ import annotations

from schemas.fleet_messages import BackendHealth, BackendState
from services.core.back_pressure import BackPressure
from services.core.backend_health import Health
from services.core.backend_metrics import ServerLoad
from services.core.balance import Candidate, Predicted, foreign_work
from services.core.breaker import Breaker, Pass
from services.core.fleet import BreakerLaw
from services.ports import Presence

_LOAD_COUNTS_S = 10.0  # what a server said of itself is forgotten after that
_REST_S = 1.0  # a backend that asked for a longer rest shows as unavailable


class Lease:
    """One try at one backend. `began_s`: when it was given out, or when the call began; `in_flight`: tries
    there then, with this one."""

    __slots__ = ("_record", "base_url", "began_s", "in_flight", "passed", "predicted", "produced")

    def __init__(self, record: BackendRecord, passed: Pass, predicted: Predicted, now_s: float) -> None:
        self._record = record
        self.base_url = record.base_url
        self.passed = passed
        self.predicted = predicted
        self.began_s = now_s
        self.in_flight = record.in_flight + 1
        self.produced = 0

    @property
    def probes(self) -> bool:
        return self.passed.probe

    def saw(self, pieces: int, now_s: float) -> None:
        """Chunks with content came: that is what a backend lives by."""
        self.produced += pieces
        self._record.heard_s = now_s


class BackendRecord:
    """`presence`: what it said when it was last asked whether it serves; None: nobody asked yet."""

    def __init__(self, base_url: str, law: BreakerLaw, *, there: bool) -> None:
        self.base_url = base_url
        self.breaker = Breaker(law)
        self.pressure = BackPressure()
        self.health = Health(law)
        self.presence: Presence | None = "ready" if there else None
        self.heard_s = float("-inf")  # when content last came from it
        self._leases: set[Lease] = set()
        self._load: ServerLoad | None = None
        self._load_s = float("-inf")

    @property
    def is_there(self) -> bool:
        return self.presence == "ready"

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    def callable_from_s(self) -> float:
        """From when a try may begin; inf where nobody knows."""
        breaker_s = self.breaker.callable_at_s()
        if breaker_s is None or not self.is_there:
            return float("inf")
        return max(breaker_s, self.pressure.until_s)

    def begin(self, predicted: Predicted, now_s: float) -> Lease:
        lease = Lease(self, self.breaker.begin(now_s), predicted, now_s)
        self._leases.add(lease)
        return lease

    def give_back(self, lease: Lease) -> bool:
        """False where it was given back before."""
        if lease not in self._leases:
            return False
        self._leases.discard(lease)
        return True

    def told(self, load: ServerLoad | None, now_s: float) -> None:
        self._load, self._load_s = load, now_s

    def load(self, now_s: float) -> ServerLoad | None:
        return self._load if now_s - self._load_s < _LOAD_COUNTS_S else None

    def candidate(self, now_s: float, usual: float) -> Candidate:
        """`usual`: the work of a usual try."""
        load = self.load(now_s)
        work, waits_since_s = self._work()
        if load is not None:
            work += foreign_work(load.running or 0.0, load.waiting or 0.0, len(self._leases), usual)
        return Candidate(self.base_url, work, self._health(now_s, waits_since_s))

    def state(self, now_s: float) -> BackendState:
        load = self.load(now_s)
        work, waits_since_s = self._work()
        return BackendState.model_construct(
            base_url=self.base_url,
            health=self._health(now_s, waits_since_s),
            breaker=self.breaker.state,
            in_flight=len(self._leases),
            tokens_in_flight=work,
            waiting=None if load is None else load.waiting,
        )

    def _work(self) -> tuple[float, float | None]:
        """What is left of its tries, and since when the oldest waits for its first token, if one does."""
        work, since_s = 0.0, None
        for lease in self._leases:
            produced = lease.produced
            work += lease.predicted.left(produced)
            if not produced and (since_s is None or lease.began_s < since_s):
                since_s = lease.began_s
        return work, since_s

    def _health(self, now_s: float, waits_since_s: float | None) -> BackendHealth:
        """Silence is what passed since, without a word from it to any try."""
        there = self.is_there and self.pressure.until_s - now_s <= _REST_S
        silent_s = 0.0 if waits_since_s is None else now_s - max(waits_since_s, self.heard_s)
        return self.health.state(now_s, self.breaker.state, reachable=there, silent_s=silent_s)
