"""The partitions that one member of a group owns, what it finished of them, and what may be committed.

Law: an offset is committed only when it and all before it are done, and only in the epoch in which it was
read or one that follows it without a break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from services.core import done_map
from services.core.offsets import BelowStartError, NeverReceivedError, PartitionTracker, Received
from services.ports import Assigned, BusError, Commit, CommitRefused, GroupSource, InRecord

log = structlog.get_logger(__name__)
_DONE, _KNOWN = Received.DONE, Received.KNOWN


# Named tuples: one of each is made for every record that is read, in half the time of a frozen dataclass.


class Place(NamedTuple):
    """Where a record stands, and the assignment epoch in which it was read."""

    partition: int
    offset: int
    epoch: int


class Taken(NamedTuple):
    """A record that is not done. `known`: it was taken before and came again after a rebalance.

    redelivered: it was there when its partition was assigned, so another member may have begun it.
    """

    record: InRecord
    place: Place
    known: bool
    redelivered: bool


class GroupOffsets:
    """Fed by an AssignmentListener and a poll loop; `commit` is called every so often and on revoke.

    `commit_after`: so many completions do not wait for the next commit of `commit_forever`.
    """

    def __init__(self, source: GroupSource, name: str, *, commit_after: int = 64) -> None:
        self._source, self._name, self._commit_after = source, name, commit_after
        self._trackers: dict[int, PartitionTracker] = {}
        self._high_water: dict[int, int] = {}
        self._epoch = 0
        self._completions = 0
        self._commit_due = asyncio.Event()

    def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        """Keeps the trackers of retained partitions, drops the lost ones, restores the others."""
        self._epoch += 1
        kept = {p: t for p, t in self._trackers.items() if p in partitions}
        self._trackers = {p: t for p, t in kept.items() if partitions[p].offset <= t.watermark}
        self._high_water = {partition: assigned.high_water for partition, assigned in partitions.items()}
        for partition, assigned in partitions.items():
            if partition in self._trackers:
                self._trackers[partition].reassigned(self._epoch)
            else:
                self._restore(partition, assigned)

    def _restore(self, partition: int, assigned: Assigned) -> None:
        decoded = done_map.decode(assigned.metadata, assigned.offset)
        if decoded.fault is not None:
            log.warning("done-map not read", group=self._name, partition=partition, fault=decoded.fault)
        self._trackers[partition] = PartitionTracker(self._epoch, assigned.offset, decoded.done)

    def owns(self, place: Place) -> bool:
        """Whether a completion of this place would still count."""
        tracker = self._trackers.get(place.partition)
        return tracker is not None and place.epoch >= tracker.first_epoch

    def any_owned(self) -> bool:
        return bool(self._trackers)

    def full_heads(self) -> list[tuple[int, int]]:
        """Partition and offset of the records that must be done before their partitions may be read on."""
        return [
            (number, tracker.head)
            for number, tracker in self._trackers.items()
            if not tracker.span_left() and tracker.head is not None
        ]

    def readable(self) -> tuple[int, ...] | None:
        """The partitions that may be polled, None for all: where the span is full, its head comes first."""
        open_ones = tuple(number for number, tracker in self._trackers.items() if tracker.span_left())
        return None if len(open_ones) == len(self._trackers) else open_ones

    def take(self, records: Sequence[InRecord]) -> list[Taken]:
        """Takes note of what a poll returned; what is done, or no longer ours, is left out."""
        taken = []
        trackers, high_water = self._trackers, self._high_water
        for record in records:
            partition, offset = record.partition, record.offset
            tracker = trackers.get(partition)
            if tracker is None:
                continue  # fetched before a rebalance took the partition away
            try:
                received = tracker.received(offset)
            except BelowStartError as fault:
                tracker = self._begun_anew(record, fault)
                received = tracker.received(offset)
            if received is not _DONE:
                place = Place(partition, offset, tracker.epoch)
                taken.append(Taken(record, place, received is _KNOWN, offset < high_water[partition]))
        return taken

    def _begun_anew(self, record: InRecord, fault: BelowStartError) -> PartitionTracker:
        log.error("the log was reset", group=self._name, partition=record.partition, fault=str(fault))
        self._epoch += 1
        self._high_water[record.partition] = 0
        tracker = self._trackers[record.partition] = PartitionTracker(self._epoch, record.offset)
        return tracker

    def done(self, place: Place) -> None:
        """Another record holds or ended what stands at this place. A stale one changes nothing."""
        tracker = self._trackers.get(place.partition)
        if tracker is None:
            return
        try:
            tracker.done(place.offset, place.epoch)
        except NeverReceivedError as fault:
            log.error("completion of nothing", group=self._name, partition=place.partition, fault=str(fault))
            return
        self._completions += 1
        if self._completions >= self._commit_after:
            self._commit_due.set()

    async def commit_forever(self, every_s: float) -> None:
        while True:
            try:
                async with asyncio.timeout(every_s):
                    await self._commit_due.wait()
            except TimeoutError:
                pass
            await self.commit()

    async def commit(self) -> None:
        """Commits what changed. What the broker does not take stays due; where the group moved on, others
        redo it."""
        self._commit_due.clear()
        self._completions = 0
        due = {number: tracker.commit() for number, tracker in self._trackers.items()}
        commits = {number: Commit(made.offset, made.done_map) for number, made in due.items() if made}
        if not commits:
            return
        try:
            await self._source.commit(commits)
        except CommitRefused as fault:
            self._not_committed(commits)
            log.info("commit refused: the group moved on", group=self._name, fault=str(fault))
        except BusError as fault:
            self._not_committed(commits)
            log.warning("commit failed", group=self._name, fault=str(fault))

    def _not_committed(self, commits: Mapping[int, Commit]) -> None:
        for partition in commits:
            tracker = self._trackers.get(partition)
            if tracker is not None:
                tracker.commit_failed()
