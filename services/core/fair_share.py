"""Whose turn it is within a priority: tenants by virtual token counters, a tenant's own work by rank.

The counters are VTC's (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024): who has the
smallest is served next and pays the weighted tokens of what starts, predicted first, corrected by the real
usage at the end. Who becomes active is lifted near the smallest counter of the active ones, so that idle time
saves nothing up but `burst`. That level never falls; it is the counter of who starts, and goes on with the
tokens that start while nothing else waits, as virtual time does in start-time fair queueing.

Between two tenants that always have work waiting, the tokens served per weight differ by at most twice the
largest single charge, plus what predictions were wrong by; who comes back is at most `burst` ahead of that.

VTC lifts to the smallest counter itself (burst 0). Then a tenant that asks less than its share pays for its
last task before its next one may start, whenever two come close together: beside a flood it waits two to four
times as long as without (simulated: 4 tenants, 80 % load, one sends ten times as much). With a burst of some
tasks it waits no longer than before.

Everything is O(log n) amortised: what changes or leaves is marked, its place in a heap goes later.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

_LEFTOVERS = 1_024
MOST_IDLE = 10_000
"""Tenants without work whose counters are remembered; beyond, who is least in debt is forgotten first."""


class Waits(Protocol):
    """Something in a queue. `ready` goes False when it has left."""

    ready: bool


S = TypeVar("S", bound=Waits)


class _Account:
    __slots__ = ("counter", "running", "stamp", "waiting")

    def __init__(self) -> None:
        self.counter = 0.0
        self.stamp = 0
        self.waiting = 0
        self.running = 0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.running)


class TokenCounters:
    """One counter for each tenant, in weighted tokens divided by the tenant's weight (1 where not named).

    `burst` is in the same unit. A tenant with nothing waiting or running is forgotten once it would be lifted
    anyway if it came back.
    """

    __slots__ = ("_accounts", "_active", "_burst", "_order", "_owing", "_stamp", "_virtual", "_weights")

    def __init__(self, weights: Mapping[str, float], burst: float = 0.0) -> None:
        for tenant, weight in weights.items():
            if not weight > 0:
                raise ValueError(f"weight of tenant {tenant}: {weight}, expected more than 0")
        self._weights = weights
        self._burst = burst
        self._accounts: dict[str, _Account] = {}
        self._active = 0
        self._order: list[tuple[float, int, str]] = []  # those with work waiting
        self._owing: list[tuple[float, int, str]] = []  # idle, above the floor
        self._stamp = 0
        self._virtual = 0.0

    def __len__(self) -> int:
        """How many tenants are remembered."""
        return len(self._accounts)

    def counter(self, tenant: str) -> float | None:
        account = self._accounts.get(tenant)
        return None if account is None else account.counter

    def waiting(self, tenant: str) -> int:
        """How many tasks of the tenant wait."""
        account = self._accounts.get(tenant)
        return 0 if account is None else account.waiting

    def lowest(self) -> str | None:
        """The tenant to serve: of those with work waiting, the one with the smallest counter."""
        while self._order:
            _, stamp, tenant = self._order[0]
            account = self._accounts.get(tenant)
            if account is not None and account.stamp == stamp and account.waiting:
                return tenant
            heappop(self._order)
        return None

    def arrived(self, tenant: str) -> None:
        """One more task of the tenant waits."""
        account = self._account(tenant)
        if not account.waiting:
            account.counter = max(account.counter, self._floor())
            account.waiting = 1
            self._active += 1
            self._placed(tenant, account)
        else:
            account.waiting += 1

    def left(self, tenant: str) -> None:
        """One waiting task less: it started (`charge` first), or is not to be run any more."""
        account = self._accounts[tenant]
        account.waiting -= 1
        if not account.waiting:
            self._active -= 1
            self._placed(tenant, account)

    def charge(self, tenant: str, tokens: float) -> None:
        """A task of the tenant starts, predicted to take that many weighted tokens."""
        account = self._account(tenant)
        account.running += 1
        self._virtual = max(self._virtual, account.counter)
        if not self._active or (self._active == 1 and account.waiting == 1):  # itself, and nothing else
            self._virtual += tokens / self._weights.get(tenant, 1.0)
        self._add(tenant, account, tokens)

    def correct(self, tenant: str, charged: float, used: float) -> None:
        """The task that was charged for is over and took `used`; 0 where its work counts for nobody."""
        account = self._accounts[tenant]
        account.running -= 1
        self._add(tenant, account, used - charged)

    def _account(self, tenant: str) -> _Account:
        """Its account; a new one, or one that was forgotten, begins at the floor."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
            account.counter = self._floor()
        return account

    def _add(self, tenant: str, account: _Account, tokens: float) -> None:
        account.counter += tokens / self._weights.get(tenant, 1.0)
        self._placed(tenant, account)

    def _floor(self) -> float:
        """What a tenant that becomes active is lifted to."""
        return self._virtual - self._burst

    def _placed(self, tenant: str, account: _Account) -> None:
        """Its place in the order, or among the idle; older places of it count no more."""
        self._stamp += 1
        account.stamp = self._stamp
        place = (account.counter, self._stamp, tenant)
        if account.waiting:
            heappush(self._order, place)
        elif account.idle:
            heappush(self._owing, place)
        if not self._stamp % _LEFTOVERS or len(self._owing) > MOST_IDLE:
            self._sweep()
        if self._owing:
            self._forget()

    def _sweep(self) -> None:
        for heap in (self._order, self._owing):
            if len(heap) > 2 * len(self._accounts) + _LEFTOVERS:
                heap[:] = [kept for kept in heap if self._stands(kept)]
                heapify(heap)

    def _stands(self, place: tuple[float, int, str]) -> bool:
        account = self._accounts.get(place[2])
        return account is not None and account.stamp == place[1]

    def _forget(self) -> None:
        owing = self._owing
        while owing:
            stands = self._stands(owing[0])
            if stands and owing[0][0] > self._floor() and len(owing) <= MOST_IDLE + _LEFTOVERS:
                return
            _, _, tenant = heappop(owing)
            if stands:
                del self._accounts[tenant]


class FairQueue(Generic[S]):
    """What waits of one priority: next is the smallest (rank, seq) of the tenant with the least counter."""

    __slots__ = ("_count", "_dead", "_waiting", "counters")

    def __init__(self, weights: Mapping[str, float], burst: float = 0.0) -> None:
        self.counters = TokenCounters(weights, burst)
        self._waiting: dict[str, list[tuple[float, int, S]]] = {}
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        return self._count

    def push(self, item: S, tenant: str, rank: float, seq: int) -> None:
        """`seq` is unlike any other's and breaks ties of rank."""
        item.ready = True
        heappush(self._waiting.setdefault(tenant, []), (rank, seq, item))
        self._count += 1
        self.counters.arrived(tenant)

    def peek(self) -> S | None:
        """What is next, if nothing changes meanwhile."""
        tenant = self.counters.lowest()
        if tenant is None:
            return None
        heap = self._waiting[tenant]
        while not heap[0][2].ready:
            heappop(heap)
            self._dead -= 1
        return heap[0][2]

    def discard(self, item: S, tenant: str) -> None:
        """Takes an item out, wherever it stands."""
        item.ready = False
        self._count -= 1
        self._dead += 1
        heap = self._waiting[tenant]
        if self.counters.waiting(tenant) == 1:
            self._dead -= len(heap)
            del self._waiting[tenant]
        self.counters.left(tenant)
        if self._dead > self._count + _LEFTOVERS:
            self._sweep()

    def _sweep(self) -> None:
        self._dead = 0
        for heap in self._waiting.values():
            heap[:] = [place for place in heap if place[2].ready]
            heapify(heap)
