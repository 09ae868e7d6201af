"""What a worker has fetched and not started: one queue per lane, pruned by cancel, deadline and revoke.

Removal is lazy (a slot is marked, its heap entries go later), so every operation is O(log n) amortised.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from services.core.lanes import LanePicker

T = TypeVar("T")

_LEFTOVERS = 1_024


@dataclass(frozen=True, slots=True)
class Queued(Generic[T]):
    """An envelope in the queue. Times are seconds on the caller's clock; the smallest `rank` goes first."""

    task_id: str
    lane: str
    partition: Hashable
    queued_s: float
    deadline_s: float
    item: T
    not_before_s: float | None = None
    rank: float = 0.0


class _Slot(Generic[T]):
    __slots__ = ("alive", "entry", "ready", "seq")

    def __init__(self, entry: Queued[T], seq: int) -> None:
        self.entry = entry
        self.seq = seq
        self.alive = True
        self.ready = False


class LocalQueue(Generic[T]):
    """First in, first out within a lane (by rank, when a policy sets one); lanes by weight and wait bound.

    It has no bounds of its own: whoever fills it stops reading. A push is never refused, because a fetched
    record or a task that waits for its next try has nowhere else to be.
    """

    __slots__ = (
        "_by_partition",
        "_dead",
        "_deadlines",
        "_delayed",
        "_picker",
        "_ready",
        "_ready_count",
        "_seq",
        "_slots",
    )

    def __init__(self, picker: LanePicker) -> None:
        self._picker = picker
        self._slots: dict[str, _Slot[T]] = {}
        self._ready: dict[str, list[tuple[float, int, _Slot[T]]]] = {lane: [] for lane in picker.lanes}
        self._ready_count = dict.fromkeys(picker.lanes, 0)
        self._delayed: list[tuple[float, int, _Slot[T]]] = []
        self._deadlines: list[tuple[float, int, _Slot[T]]] = []
        self._by_partition: dict[Hashable, dict[str, _Slot[T]]] = {}
        self._seq = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._slots

    def eligible(self, lane: str) -> int:
        """How many envelopes of a lane could start, as of the last `pop`; delayed ones are not counted."""
        return self._ready_count[lane]

    def push(self, entry: Queued[T]) -> None:
        """Raises ValueError for a task that is queued already, KeyError for an unknown lane."""
        if entry.task_id in self._slots:
            raise ValueError(f"task {entry.task_id} is queued already")
        if entry.lane not in self._ready:
            raise KeyError(entry.lane)
        self._seq += 1
        slot = _Slot(entry, self._seq)
        self._slots[entry.task_id] = slot
        self._by_partition.setdefault(entry.partition, {})[entry.task_id] = slot
        heappush(self._deadlines, (entry.deadline_s, slot.seq, slot))
        if entry.not_before_s is None:
            self._make_ready(slot, entry.queued_s)
        else:
            heappush(self._delayed, (entry.not_before_s, slot.seq, slot))

    def pop(self, now_s: float) -> Queued[T] | None:
        """The next envelope to start, or None when none is eligible. Prune with `expired` first."""
        self._release_due(now_s)
        lane = self._picker.pick(now_s)
        if lane is None:
            return None
        ready = self._ready[lane]
        slot = heappop(ready)[2]
        while not slot.alive:
            slot = heappop(ready)[2]
        return self._take(slot)

    def remove(self, task_id: str) -> Queued[T] | None:
        """Take one task out, whatever it waits for: it was cancelled, or it must start now."""
        slot = self._slots.get(task_id)
        return None if slot is None else self._take(slot)

    def expired(self, now_s: float) -> list[Queued[T]]:
        """Take out what reached its deadline."""
        gone = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            slot = heappop(self._deadlines)[2]
            if slot.alive:
                gone.append(self._take(slot))
        return gone

    def drop_partition(self, partition: Hashable) -> list[Queued[T]]:
        """Take out what came from a partition that was revoked, in the order it came."""
        return [self._take(slot) for slot in list(self._by_partition.get(partition, {}).values())]

    def next_due(self) -> float | None:
        """When the next delayed envelope becomes eligible, in seconds; None when none is delayed."""
        while self._delayed and not self._delayed[0][2].alive:
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def _release_due(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            due_s, _, slot = heappop(self._delayed)
            if slot.alive:
                self._make_ready(slot, due_s)

    def _make_ready(self, slot: _Slot[T], since_s: float) -> None:
        lane = slot.entry.lane
        slot.ready = True
        heappush(self._ready[lane], (slot.entry.rank, slot.seq, slot))
        self._ready_count[lane] += 1
        if self._ready_count[lane] == 1:
            self._picker.arrived(lane, since_s)

    def _take(self, slot: _Slot[T]) -> Queued[T]:
        entry = slot.entry
        slot.alive = False
        del slot.entry  # a dead slot may stay in a heap for a while, its body must not
        del self._slots[entry.task_id]
        siblings = self._by_partition[entry.partition]
        del siblings[entry.task_id]
        if not siblings:
            del self._by_partition[entry.partition]
        if slot.ready:
            self._ready_count[entry.lane] -= 1
            if not self._ready_count[entry.lane]:
                self._picker.emptied(entry.lane)
        self._dead += 1
        if self._dead > len(self._slots) + _LEFTOVERS:
            self._sweep()
        return entry

    def _sweep(self) -> None:
        """A dead slot would otherwise stay in the heaps until its deadline."""
        self._dead = 0
        for heap in (*self._ready.values(), self._delayed, self._deadlines):
            heap[:] = [place for place in heap if place[2].alive]
            heapify(heap)
