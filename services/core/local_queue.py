"""What a worker has fetched and not started: one queue per lane, pruned by cancel, deadline and revoke.

Removal is lazy (a slot is marked, its heap entries go later), so every operation is O(log n) amortised.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from types import MappingProxyType
from typing import Generic, TypeVar

from services.core.fair_share import FairQueue
from services.core.lanes import LanePicker

T = TypeVar("T")

_LEFTOVERS = 1_024
_EVEN: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Queued(Generic[T]):
    """An envelope in the queue. Times are seconds on the caller's clock; the smallest `rank` goes first.

    tokens: weighted tokens that `tenant` is charged when it starts.
    """

    task_id: str
    lane: str
    partition: Hashable
    queued_s: float
    deadline_s: float
    item: T
    not_before_s: float | None = None
    rank: float = 0.0
    tenant: str = "default"
    tokens: float = 0.0

    @property
    def since_s(self) -> float:
        """Since when it could start."""
        return self.queued_s if self.not_before_s is None else max(self.queued_s, self.not_before_s)


class _Slot(Generic[T]):
    """`ready`: in its lane's queue, else delayed or ahead of all."""

    __slots__ = ("alive", "entry", "ready", "seq")

    def __init__(self, entry: Queued[T], seq: int) -> None:
        self.entry = entry
        self.seq = seq
        self.alive = True
        self.ready = False


class LocalQueue(Generic[T]):
    """Lanes by weight and wait bound; within a lane tenants by virtual counters, a tenant's work by rank.

    It has no bounds of its own: whoever fills it stops reading. A push is never refused, because a fetched
    record or a task that waits for its next try has nowhere else to be.
    """

    __slots__ = (
        "_ahead",
        "_by_partition",
        "_dead",
        "_deadlines",
        "_delayed",
        "_delayed_deadlines",
        "_picker",
        "_ready",
        "_seq",
        "_slots",
        "_soonest_s",
    )

    def __init__(
        self, picker: LanePicker, tenant_weights: Mapping[str, float] = _EVEN, burst: float = 0.0
    ) -> None:
        self._picker = picker
        self._slots: dict[str, _Slot[T]] = {}
        self._ready: dict[str, FairQueue[_Slot[T]]] = {
            lane: FairQueue(tenant_weights, burst) for lane in picker.lanes
        }
        self._ahead: dict[str, _Slot[T]] = {}  # by task_id, in the order they start
        self._delayed: list[tuple[float, int, _Slot[T]]] = []
        self._deadlines: dict[str, list[tuple[float, int, _Slot[T]]]] = {lane: [] for lane in picker.lanes}
        self._delayed_deadlines: list[tuple[float, int, _Slot[T]]] = []
        self._by_partition: dict[Hashable, dict[str, _Slot[T]]] = {}
        self._seq = 0
        self._dead = 0
        self._soonest_s = inf  # no deadline is before it

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._slots

    def eligible(self, lane: str) -> int:
        """How many envelopes of a lane could start by their turn, as of the last `pop`."""
        return len(self._ready[lane])

    def is_ahead(self, task_id: str) -> bool:
        return task_id in self._ahead

    def push(self, entry: Queued[T]) -> None:
        """Raises ValueError for a task that is queued already, KeyError for an unknown lane."""
        if entry.task_id in self._slots:
            raise ValueError(f"task {entry.task_id} is queued already")
        if entry.lane not in self._ready:
            raise KeyError(entry.lane)
        self._seq += 1
        slot = _Slot(entry, self._seq)
        self._slots[entry.task_id] = slot
        if entry.deadline_s < self._soonest_s:
            self._soonest_s = entry.deadline_s
        self._by_partition.setdefault(entry.partition, {})[entry.task_id] = slot
        if entry.not_before_s is None:
            self._make_ready(slot)
        else:
            heappush(self._delayed, (entry.not_before_s, slot.seq, slot))
            heappush(self._delayed_deadlines, (entry.deadline_s, slot.seq, slot))

    def pop(self, now_s: float, barred: Collection[str] = ()) -> Queued[T] | None:
        """The next envelope to start, or None when none is eligible. Prune with `expired` first.

        Nothing of a barred lane starts. Its tenant is charged: `settle` it when its try is over.
        """
        self._release_due(now_s)
        slot = next((slot for slot in self._ahead.values() if slot.entry.lane not in barred), None)
        if slot is None:
            lane = self._picker.pick(now_s, barred)
            slot = None if lane is None else self._ready[lane].peek()
        if slot is None:
            return None
        entry = slot.entry
        self._ready[entry.lane].counters.charge(entry.tenant, entry.tokens)
        return self._take(slot)

    def settle(self, entry: Queued[T], used: float) -> None:
        """A popped envelope's try is over: its tenant pays the weighted tokens that it used."""
        self._ready[entry.lane].counters.correct(entry.tenant, entry.tokens, used)

    def put_ahead(self, task_id: str) -> bool:
        """A waiting task starts before all others, delayed or not; False where it does not wait here."""
        slot = self._slots.get(task_id)
        if slot is None:
            return False
        self._unready(slot)
        self._ahead.setdefault(task_id, slot)
        return True

    def first(self, lane: str) -> Queued[T] | None:
        """What starts next of a lane when its turn comes, those ahead of all aside."""
        slot = self._ready[lane].peek()
        return None if slot is None else slot.entry

    def most_urgent(self, lane: str) -> Queued[T] | None:
        """What has the earliest deadline of those in a lane that wait for their turn."""
        heap = self._deadlines[lane]
        while heap and not heap[0][2].ready:
            if heap[0][2].alive:  # put ahead: it keeps its deadline
                heappush(self._delayed_deadlines, heap[0])
            heappop(heap)
        return heap[0][2].entry if heap else None

    def remove(self, task_id: str) -> Queued[T] | None:
        """Take one task out, whatever it waits for: it was cancelled, or it must start now."""
        slot = self._slots.get(task_id)
        return None if slot is None else self._take(slot)

    def expired(self, now_s: float) -> list[Queued[T]]:
        """Take out what reached its deadline, whatever it waits for."""
        if now_s < self._soonest_s:
            return []
        gone = []
        for heap in (*self._deadlines.values(), self._delayed_deadlines):
            while heap and heap[0][0] <= now_s:
                slot = heappop(heap)[2]
                if slot.alive:
                    gone.append(self._take(slot))
        self.next_deadline()
        return gone

    def drop_partition(self, partition: Hashable) -> list[Queued[T]]:
        """Take out what came from a partition that was revoked, in the order it came."""
        return [self._take(slot) for slot in list(self._by_partition.get(partition, {}).values())]

    def next_due(self) -> float | None:
        """When the next delayed envelope becomes eligible, in seconds; None when none is delayed."""
        while self._delayed and not self._is_delayed(self._delayed[0][2]):
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def next_deadline(self, before_s: float = inf) -> float | None:
        """When the next envelope expires, in seconds; None when none does so before then."""
        if self._soonest_s >= before_s:
            return None
        first = inf
        for heap in (*self._deadlines.values(), self._delayed_deadlines):
            while heap and not heap[0][2].alive:
                heappop(heap)
            if heap and heap[0][0] < first:
                first = heap[0][0]
        self._soonest_s = first
        return first if first < before_s else None

    def _is_delayed(self, slot: _Slot[T]) -> bool:
        return slot.alive and not slot.ready and slot.entry.task_id not in self._ahead

    def _release_due(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            slot = heappop(self._delayed)[2]
            if self._is_delayed(slot):
                self._make_ready(slot)

    def _make_ready(self, slot: _Slot[T]) -> None:
        entry = slot.entry
        queue = self._ready[entry.lane]
        queue.push(slot, entry.tenant, entry.rank, slot.seq)
        heappush(self._deadlines[entry.lane], (entry.deadline_s, slot.seq, slot))
        if len(queue) == 1:
            self._picker.arrived(entry.lane, entry.since_s)

    def _unready(self, slot: _Slot[T]) -> None:
        if not slot.ready:
            return
        lane = slot.entry.lane
        self._ready[lane].discard(slot, slot.entry.tenant)
        if not len(self._ready[lane]):
            self._picker.emptied(lane)

    def _take(self, slot: _Slot[T]) -> Queued[T]:
        entry = slot.entry
        self._unready(slot)
        self._ahead.pop(entry.task_id, None)
        slot.alive = False
        del slot.entry  # a dead slot may stay in a heap for a while, its body must not
        del self._slots[entry.task_id]
        siblings = self._by_partition[entry.partition]
        del siblings[entry.task_id]
        if not siblings:
            del self._by_partition[entry.partition]
        self._dead += 1
        if self._dead > len(self._slots) + _LEFTOVERS:
            self._sweep()
        return entry

    def _sweep(self) -> None:
        """A dead slot would otherwise stay in the heaps until its deadline."""
        self._dead = 0
        for heap in (*self._deadlines.values(), self._delayed, self._delayed_deadlines):
            heap[:] = [place for place in heap if place[2].alive]
            heapify(heap)
