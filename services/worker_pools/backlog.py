"""What waits for a slot: the local queue, with a share of its room for each priority."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from schemas.failures import FailureKind
from schemas.messages import Usage
from schemas.topics import Priority
from services.core.eviction import Waiting
from services.core.lanes import LanePicker
from services.core.local_queue import LocalQueue, Queued
from services.core.order import AHEAD, Known, Rank, fcfs
from services.core.service_times import ServiceTimes
from services.core.work_size import USUAL_OUTPUT_TOKENS, used_tokens
from services.worker_pools.held import Held, Phase

# A backlog of batch work must not keep interactive work from being read.
_SHARES: Mapping[str, float] = {"interactive": 0.5, "standard": 0.25, "batch": 0.25}


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the queue is shared: tenants by weight (1 where not named), a tenant's own work by `rank`.

    burst_tokens: weighted tokens that a tenant which asked for less than its share is ahead of the others.
    """

    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    burst_tokens: float = 20.0 * USUAL_OUTPUT_TOKENS
    rank: Rank = fcfs


class Backlog:
    """Times are Unix seconds. `room` counts what a priority holds in all, waiting, running and settling."""

    def __init__(
        self,
        weights: Mapping[Priority, int],
        max_tasks: int,
        max_bytes: int,
        *,
        sharing: Sharing | None = None,
        prior_s: float = 1.0,
    ) -> None:
        sharing = sharing or Sharing()
        by_name = {str(name): weight for name, weight in weights.items()}
        self._queue: LocalQueue[Held] = LocalQueue(
            LanePicker(by_name), sharing.tenant_weights, sharing.burst_tokens
        )
        self._rank = sharing.rank
        self._started: dict[str, Queued[Held]] = {}
        self._most = {
            priority: (max(1, int(max_tasks * share)), int(max_bytes * share))
            for priority, share in _SHARES.items()
        }
        self._held = dict.fromkeys(_SHARES, 0)
        self._bytes = dict.fromkeys(_SHARES, 0)
        self.times = ServiceTimes(prior_s)

    def __len__(self) -> int:
        return len(self._queue)

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

    def push(
        self, held: Held, now_s: float, not_before_s: float | None = None, *, evicted: bool = False
    ) -> None:
        """An evicted task waits before all else of its tenant."""
        held.phase = Phase.QUEUED
        held.newer.clear()  # it stays: all of its records are done with it
        headers, priority = held.headers, held.priority
        partition = held.positions[0].place.partition if held.positions else -1
        deadline_s = headers.deadline_ms / 1000
        tokens = headers.tokens or self.times.usual_tokens(priority, USUAL_OUTPUT_TOKENS)
        service_s = self.times.expected_s(priority, headers.tokens)
        known = Known(held.written_ms / 1000, deadline_s, tokens, service_s)
        self._queue.push(
            Queued(
                task_id=held.task_id,
                lane=priority,
                partition=(priority, partition),
                queued_s=now_s,
                deadline_s=deadline_s,
                item=held,
                not_before_s=not_before_s,
                rank=AHEAD if evicted else self._rank(known),
                tenant=headers.tenant,
                tokens=tokens,
            )
        )

    def put_first(self, task_id: str) -> bool:
        """A waiting task starts with the next free slot; False where it does not wait here."""
        return self._queue.put_ahead(task_id)

    def pop(self, now_s: float, barred: Collection[str] = ()) -> Held | None:
        """The next task to start; say `ended` when its slot is free. Nothing of a barred priority starts."""
        entry = self._queue.pop(now_s, barred)
        if entry is None:
            return None
        held = entry.item
        held.started_s, held.used_tokens = now_s, None
        self._started[entry.task_id] = entry
        return held

    def tried(self, held: Held, usage: Usage, failure: FailureKind | None, ran_s: float) -> None:
        """A try of a task that has a slot is over, after that many seconds and with that usage."""
        entry = self._started.get(held.task_id)
        if entry is None or failure is FailureKind.EVICTED:
            return
        used = used_tokens(usage.input_tokens, usage.output_tokens)
        if failure is None:
            used = used or entry.tokens  # a tool counts none, and is no free ride
            self.times.saw(held.priority, held.headers.tokens, used, ran_s)
        held.used_tokens = used

    def ended(self, held: Held) -> None:
        """Its tenant pays for what the try used: nothing where none ran, or we threw its work away."""
        entry = self._started.pop(held.task_id, None)
        if entry is None:
            return
        used = held.used_tokens
        self._queue.settle(entry, 0.0 if used is None else used)

    def next_interactive(self) -> list[Waiting]:
        """Interactive tasks for whom a slot may have to be made: who is next, and who must start soonest."""
        first = self._queue.first("interactive")
        if first is None:
            return []
        urgent = self._queue.most_urgent("interactive")
        entries = [first] if urgent is None or urgent is first else [first, urgent]
        return [
            Waiting(
                entry.task_id,
                entry.since_s,
                entry.deadline_s,
                self.times.expected_s("interactive", entry.item.headers.tokens),
            )
            for entry in entries
        ]

    def eligible(self, priority: str) -> int:
        """How many tasks of a priority wait for their turn, delayed ones and those put first aside."""
        return self._queue.eligible(priority)

    def is_first(self, task_id: str) -> bool:
        """Whether it was put first and waits still."""
        return self._queue.is_ahead(task_id)

    def remove(self, held: Held) -> bool:
        return self._queue.remove(held.task_id) is not None

    def expired(self, now_s: float) -> list[Held]:
        """Takes out what reached its deadline, whatever it waits for."""
        return [entry.item for entry in self._queue.expired(now_s)]

    def next_due(self) -> float | None:
        return self._queue.next_due()

    def next_deadline(self, before_s: float) -> float | None:
        return self._queue.next_deadline(before_s)

    def take_partitions(self, priority: str, partitions: Collection[int]) -> list[Held]:
        """Takes out what waits of these partitions, each in the order it came."""
        return [
            entry.item
            for partition in partitions
            for entry in self._queue.drop_partition((priority, partition))
        ]

    def take_all(self) -> list[Held]:
        return self.expired(float("inf"))
