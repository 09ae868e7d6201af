"""One lane of the pool: a member of its group, with a tracker for each partition that it owns.

Law: an offset is committed only when it and all before it are done, and only in the epoch in which it was
read or one that follows it without a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from services.core import done_map
from services.core.offsets import BelowStartError, NeverReceivedError, PartitionTracker, Received
from services.ports import Assigned, BusError, Clock, Commit, CommitRefused, GroupSource, InRecord
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

    def holds(self, task_id: str | None, place: Position) -> bool:
        """Whether the record at this very place is held or being dealt with."""
        ...

    def arrived(self, record: InRecord, place: Position, *, redelivered: bool) -> None: ...

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
    """AssignmentListener, poll loop and committer of one (pool, priority)."""

    def __init__(
        self, priority: str, source: GroupSource, owner: LaneOwner, clock: Clock, knobs: WorkerKnobs
    ) -> None:
        self.priority = priority
        self._source = source
        self._owner = owner
        self._clock = clock
        self._knobs = knobs
        self._trackers: dict[int, PartitionTracker] = {}
        self._high_water: dict[int, int] = {}
        self._since: dict[int, int] = {}  # the epoch in which a partition's tracker was made
        self._epoch = 0
        self._completions = 0
        self._commit_due = asyncio.Event()
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

    # AssignmentListener

    async def revoked(self, partitions: Collection[int]) -> None:
        self._rebalancing = True  # what a poll still returns comes again
        await self._owner.revoked(self.priority, tuple(partitions))
        await self.commit()

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self._epoch += 1
        retained = {
            partition
            for partition, assigned in partitions.items()
            if partition in self._trackers and assigned.offset <= self._trackers[partition].watermark
        }
        for partition in self._trackers.keys() - retained:
            del self._trackers[partition]
        for partition, assigned in partitions.items():
            self._high_water[partition] = assigned.high_water
            if partition in retained:
                self._trackers[partition].reassigned(self._epoch)
            else:
                self._restore(partition, assigned)
        self.joined = True
        self._rebalancing = False
        self._owner.assigned(self.priority)

    def _restore(self, partition: int, assigned: Assigned) -> None:
        decoded = done_map.decode(assigned.metadata, assigned.offset)
        if decoded.fault is not None:
            log.warning("done-map not read", lane=self.priority, partition=partition, fault=decoded.fault)
        self._tracker(partition, assigned.offset, decoded.done)

    def _tracker(self, partition: int, offset: int, done: done_map.DoneSet | None = None) -> PartitionTracker:
        self._since[partition] = self._epoch
        tracker = self._trackers[partition] = PartitionTracker(self._epoch, offset, done)
        return tracker

    def owns(self, place: Position) -> bool:
        """Whether a completion of this position would still count."""
        tracker = self._trackers.get(place.partition)
        return tracker is not None and place.epoch >= self._since[place.partition]

    # reading

    async def poll_forever(self) -> None:
        while not self._stopping:
            self.turned_s = self._clock.now_s()
            room = min(self._owner.room(self.priority), self._knobs.poll_records)
            open_partitions = await self._open_partitions()
            if room <= 0 or open_partitions == ():
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                records = await self._source.poll(
                    timeout_ms=self._knobs.poll_ms, max_records=room, partitions=open_partitions
                )
            except BusError as fault:
                log.warning("poll failed", lane=self.priority, fault=str(fault))
                await asyncio.sleep(_PAUSE_S)
                continue
            if records:
                self._take(records)
            elif not self._trackers:
                await asyncio.sleep(_PAUSE_S)

    async def _open_partitions(self) -> tuple[int, ...] | None:
        """None where all may be read; the others wait for the head of their span."""
        full = [(number, tracker) for number, tracker in self._trackers.items() if not tracker.span_left()]
        if not full:
            return None
        for number, tracker in full:
            if tracker.head is not None:
                await self._owner.span_is_full(self.priority, number, tracker.head)
        shut = {number for number, _ in full}
        return tuple(number for number in self._trackers if number not in shut)

    def _take(self, records: list[InRecord]) -> None:
        if self._stopping or self._rebalancing:
            return
        for record in records:
            tracker = self._trackers.get(record.partition)
            if tracker is None:
                continue  # fetched before a rebalance took the partition away
            try:
                received = tracker.received(record.offset)
            except BelowStartError as fault:
                tracker = self._begun_anew(record, fault)
                received = tracker.received(record.offset)
            if received is Received.DONE:
                continue
            place = Position(self.priority, record.partition, record.offset, tracker.epoch)
            if received is Received.KNOWN and self._owner.holds(task_id_of(record), place):
                continue
            redelivered = record.offset < self._high_water.get(record.partition, 0)
            self._owner.arrived(record, place, redelivered=redelivered)
        self._owner.read_on()

    def _begun_anew(self, record: InRecord, fault: BelowStartError) -> PartitionTracker:
        log.error("the log was reset", lane=self.priority, partition=record.partition, fault=str(fault))
        self._epoch += 1
        self._high_water[record.partition] = 0
        return self._tracker(record.partition, record.offset)

    # completing

    def done(self, place: Position) -> None:
        """Another record holds or ended what stands at this position. A stale one changes nothing."""
        tracker = self._trackers.get(place.partition)
        if tracker is None:
            return
        try:
            tracker.done(place.offset, place.epoch)
        except NeverReceivedError as fault:
            log.error(
                "completion of nothing", lane=self.priority, partition=place.partition, fault=str(fault)
            )
            return
        self._completions += 1
        if self._completions >= self._knobs.commit_after:
            self._commit_due.set()

    async def commit_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._knobs.commit_every_s):
                    await self._commit_due.wait()
            except TimeoutError:
                pass
            await self.commit()

    async def commit(self) -> None:
        """Commits what changed. What the broker does not take stays due, or is redone by the next owner."""
        self._commit_due.clear()
        self._completions = 0
        commits: dict[int, Commit] = {}
        for partition, tracker in self._trackers.items():
            due = tracker.commit()
            if due is not None:
                commits[partition] = Commit(due.offset, due.done_map)
        if not commits:
            return
        try:
            await self._source.commit(commits)
        except CommitRefused as fault:
            self._not_committed(commits)
            log.info("commit refused: the group moved on", lane=self.priority, fault=str(fault))
        except BusError as fault:
            self._not_committed(commits)
            log.warning("commit failed", lane=self.priority, fault=str(fault))

    def _not_committed(self, commits: Mapping[int, Commit]) -> None:
        for partition in commits:
            tracker = self._trackers.get(partition)
            if tracker is not None:
                tracker.commit_failed()
