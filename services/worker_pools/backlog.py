"""What waits for a slot: the local queue, with a share of its room for each priority."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from schemas.topics import Priority
from services.core.lanes import LanePicker
from services.core.local_queue import LocalQueue, Queued
from services.worker_pools.held import Held, Phase

# A backlog of batch work must not keep interactive work from being read.
_SHARES: Mapping[str, float] = {"interactive": 0.5, "standard": 0.25, "batch": 0.25}


class Backlog:
    """Times are Unix seconds. `room` counts what a priority holds in all, waiting, running and settling."""

    def __init__(self, weights: Mapping[Priority, int], max_tasks: int, max_bytes: int) -> None:
        by_name = {str(name): weight for name, weight in weights.items()}
        self._queue: LocalQueue[Held] = LocalQueue(LanePicker(by_name))
        self._ahead: dict[str, Held] = {}  # heads of a full span: they start next
        self._most = {
            priority: (max(1, int(max_tasks * share)), int(max_bytes * share))
            for priority, share in _SHARES.items()
        }
        self._held = dict.fromkeys(_SHARES, 0)
        self._bytes = dict.fromkeys(_SHARES, 0)

    def __len__(self) -> int:
        return len(self._queue) + len(self._ahead)

    def room(self, priority: str) -> int:
        """How many more tasks of this priority may be read now."""
        most, most_bytes = self._most[priority]
        if self._bytes[priority] >= most_bytes:
            return 0
        return max(0, most - self._held[priority])

    def took(self, held: Held) -> None:
        """The worker holds one more task of this priority."""
        self._held[held.priority] += 1
        self._bytes[held.priority] += held.size_bytes

    def released(self, held: Held) -> None:
        self._held[held.priority] -= 1
        self._bytes[held.priority] -= held.size_bytes

    def push(self, held: Held, now_s: float, not_before_s: float | None = None) -> None:
        held.phase = Phase.QUEUED
        partition = held.positions[0].place.partition if held.positions else -1
        self._queue.push(
            Queued(
                task_id=held.task_id,
                lane=held.priority,
                partition=(held.priority, partition),
                queued_s=now_s,
                deadline_s=held.headers.deadline_ms / 1000,
                item=held,
                not_before_s=not_before_s,
            )
        )

    def put_first(self, held: Held) -> bool:
        """A waiting task starts with the next free slot; False where it does not wait here."""
        if self._queue.remove(held.task_id) is None:
            return False
        self._ahead[held.task_id] = held
        return True

    def pop(self, now_s: float) -> Held | None:
        if self._ahead:
            return self._ahead.pop(next(iter(self._ahead)))
        entry = self._queue.pop(now_s)
        return None if entry is None else entry.item

    def remove(self, held: Held) -> bool:
        return self._ahead.pop(held.task_id, None) is not None or self._queue.remove(held.task_id) is not None

    def expired(self, now_s: float) -> list[Held]:
        """Takes out what reached its deadline; of what starts next, the start itself sees it."""
        return [entry.item for entry in self._queue.expired(now_s)]

    def next_due(self) -> float | None:
        return self._queue.next_due()

    def take_partitions(self, priority: str, partitions: Collection[int]) -> list[Held]:
        """Takes out what waits of these partitions, in the order it came."""
        taken = [
            held
            for held in self._ahead.values()
            if held.positions
            and held.priority == priority
            and held.positions[0].place.partition in partitions
        ]
        for held in taken:
            del self._ahead[held.task_id]
        for partition in partitions:
            taken += [entry.item for entry in self._queue.drop_partition((priority, partition))]
        return taken

    def take_all(self) -> list[Held]:
        taken = [*self._ahead.values(), *self.expired(float("inf"))]
        self._ahead.clear()
        return taken
