"""One lane of the pool: a member of its group, which reads as much as its worker has room for.

Law: between the revoke and the assignment that follows nothing that was read counts: it comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from services.ports import Assigned, BusError, Clock, GroupSource, InRecord
from services.runtime.group_offsets import GroupOffsets
from services.worker_pools.held import Position
from services.worker_pools.intake import task_id_of
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
_PAUSE_S = 0.05


class LaneOwner(Protocol):
    """What a lane needs of its worker."""

    def room(self, priority: str) -> int:
        """How many more records may be read now."""
        ...

    def holds(self, task_id: str | None, position: Position) -> bool:
        """Whether the record at this very position is held or being dealt with."""
        ...

    def arrived(self, record: InRecord, position: Position, *, redelivered: bool) -> None: ...

    def read_on(self) -> None:
        """A batch is in: start what can be started."""
        ...

    async def span_is_full(self, priority: str, partition: int, head: int) -> None: ...

    async def revoked(self, priority: str, partitions: Collection[int]) -> None:
        """Within a second: hand over what runs, let nothing of these partitions start."""
        ...

    def assigned(self, priority: str) -> None:
        """What waits of partitions that are still owned goes on, the rest of the revoked ones is dropped."""
        ...


class Lane:
    """AssignmentListener and poll loop of one (pool, priority); `group` is its consumer group, `offsets` what
    it owns there, and what of that is done."""

    def __init__(
        self,
        priority: str,
        group: str,
        source: GroupSource,
        owner: LaneOwner,
        clock: Clock,
        knobs: WorkerKnobs,
    ) -> None:
        self.priority = priority
        self._source = source
        self._owner = owner
        self._clock = clock
        self._knobs = knobs
        self.offsets = GroupOffsets(source, group, commit_after=knobs.commit_after)
        self._stopping = False
        self._rebalancing = False
        self.joined = False  # an assignment was seen, be it empty
        self.turned_s = clock.now_s()  # when the poll loop last turned

    async def start(self) -> None:
        await self._source.start(self)

    def stop_polling(self) -> None:
        self._stopping = True

    async def leave(self) -> None:
        await self._source.stop()

    def ready(self) -> bool:
        """Whether the position of every assigned partition is known."""
        return self.joined and all(
            self._source.position(partition) is not None for partition in self._source.assignment()
        )

    @property
    def owned(self) -> tuple[int, ...]:
        """The partitions that are this worker's now."""
        return tuple(sorted(self._source.assignment()))

    # AssignmentListener

    async def revoked(self, partitions: Collection[int]) -> None:
        self._rebalancing = True  # what a poll still returns comes again
        await self._owner.revoked(self.priority, tuple(partitions))
        await self.offsets.commit()

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self.offsets.assigned(partitions)
        self.joined = True
        self._rebalancing = False
        self._owner.assigned(self.priority)

    # reading

    async def poll_forever(self) -> None:
        while not self._stopping:
            self.turned_s = self._clock.now_s()
            room = min(self._owner.room(self.priority), self._knobs.poll_records)
            readable = await self._readable()
            if room <= 0 or readable == ():
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                records = await self._source.poll(
                    timeout_ms=self._knobs.poll_ms, max_records=room, partitions=readable
                )
            except BusError as fault:
                log.warning("poll failed", lane=self.priority, fault=str(fault))
                await asyncio.sleep(_PAUSE_S)
                continue
            if records:
                self._take(records)
            elif not self.offsets.any_owned():
                await asyncio.sleep(_PAUSE_S)

    async def _readable(self) -> tuple[int, ...] | None:
        """None where all may be read; the others wait for the head of their span."""
        readable = self.offsets.readable()
        if readable is None:
            return None
        for partition, head in self.offsets.full_heads():
            await self._owner.span_is_full(self.priority, partition, head)
        return self.offsets.readable()

    def _take(self, records: list[InRecord]) -> None:
        if self._stopping or self._rebalancing:
            return
        owner, priority = self._owner, self.priority
        for record, place, known, redelivered in self.offsets.take(records):
            position = Position(priority, place)
            if not (known and owner.holds(task_id_of(record), position)):
                owner.arrived(record, position, redelivered=redelivered)
        owner.read_on()
