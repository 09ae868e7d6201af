"""The sweep: parked tasks that are due go back to a lane, overdue ones are closed, silent tries are lost.

Law: only of partitions that this member owns, and only after it read past everything that was there when the
sweep began. It proves that by a mark: a record of its own, written to the partition and read back. A log that
is frozen, or a reader that stopped silently, so makes nothing due.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from services.core.life.log_time import LogTime
from services.orchestrator.owed import Owed, send_each
from services.orchestrator.settings import BookkeeperKnobs
from services.ports import BookkeeperStore, InRecord, Publisher

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Proof:
    """The mark of a sweep under way, and the partitions where it was not read back yet, and where it was.

    times: what each log had reached before the mark was written. By no later time is anything judged: between
    the mark and its return a holder may renew in records that were not read.
    """

    name: str
    began_s: float
    times: Mapping[int, int]
    unread: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)


class Sweep:
    """Fed with all that is read; `turn` is called between polls. `steady` is a clock that never jumps."""

    def __init__(
        self,
        store: BookkeeperStore,
        publisher: Publisher,
        owed: Owed,
        knobs: BookkeeperKnobs,
        *,
        steady: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._store, self._publisher, self._owed, self._knobs = store, publisher, owed, knobs
        self._steady, self._wall_ms = steady, wall_ms
        self._times: dict[int, LogTime] = {}
        self._unknown: set[int] = set()  # assigned, and nothing read of them yet
        self._proof: _Proof | None = None
        self._next_s = self._next_purge_s = steady() + knobs.sweep_every_s
        self.swept = 0
        self.overdue = 0

    def assigned(self, partitions: Collection[int]) -> None:
        self._unknown |= set(partitions)

    def revoked(self, partitions: Collection[int]) -> None:
        """What was read of them says nothing any more: others write there now."""
        for partition in partitions:
            self._times.pop(partition, None)
        self._unknown -= set(partitions)
        self._proof = None

    def read(self, records: Sequence[InRecord]) -> None:
        """Takes note of what was read *and applied*: its times, and marks that came back."""
        now_s, proof = self._steady(), self._proof
        for record in records:
            if record.key == b"sweep" and proof is not None and record.value == proof.name.encode():
                proof.unread.discard(record.partition)
                proof.read.add(record.partition)
            elif record.key != b"sweep":
                self._times[record.partition] = LogTime(record.timestamp_ms, now_s)
                self._unknown.discard(record.partition)

    async def turn(self) -> bool:
        """One step, if it is time for one; whether the database was asked and answered.

        Raises StoreError; what it left undone the next sweep finds.
        """
        now_s = self._steady()
        if self._proof is not None:
            await self._go_on(self._proof, now_s)
            return False
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._knobs.sweep_every_s
        await self._store.ping()  # readiness must not wait for records to find the database gone
        await self._begin(now_s)
        return True

    async def _begin(self, now_s: float) -> None:
        await self._place_silent_logs(now_s)
        times = self._reached(self._times.keys(), now_s)
        lost_before = int(self._knobs.lost_after_s * 1000)
        await self._store.lose_tries({p: max(0, now - lost_before) for p, now in times.items()})
        if now_s >= self._next_purge_s:
            self._next_purge_s = now_s + self._knobs.purge_every_s
            await self._store.purge(self._wall_ms())
        due = set(await self._store.due_partitions(times)) & times.keys()
        if not due:
            return
        proof = self._proof = _Proof(uuid.uuid4().hex, now_s, times, set(due))
        marks = {partition: self._owed.mark(partition, proof.name) for partition in sorted(due)}
        failed = await send_each(self._publisher, list(marks.values()), timeout_s=self._knobs.ack_timeout_s)
        proof.unread -= {mark.partition for mark in failed if mark.partition is not None}

    async def _place_silent_logs(self, now_s: float) -> None:
        """A log that says nothing since we own it is at least where its newest row was."""
        if self._unknown:
            stamps = await self._store.newest_stamps(self._unknown)
            for partition in self._unknown & stamps.keys():
                self._times[partition] = LogTime(stamps[partition], now_s)
            self._unknown.clear()

    async def _go_on(self, proof: _Proof, now_s: float) -> None:
        if proof.unread and now_s < proof.began_s + self._knobs.proof_timeout_s:
            return
        self._proof = None
        if proof.read:
            await self._act({partition: proof.times[partition] for partition in proof.read})

    async def _act(self, times: Mapping[int, int]) -> None:
        limit, timeout_s = self._knobs.sweep_limit, self._knobs.ack_timeout_s
        overdue = await self._store.overdue(times, limit=limit)
        closes = [self._owed.overdue(task, times[task.partition]) for task in overdue]
        taken = await self._store.take_due(times, limit=limit)
        lanes = {task.task_id: self._owed.lane(task) for task in taken}
        failed = await send_each(self._publisher, [*closes, *lanes.values()], timeout_s=timeout_s)
        unsent = {id(record) for record in failed}
        done = [task for task in taken if id(lanes[task.task_id]) not in unsent]
        await self._store.mark_swept(done)  # what stays `sweeping` is published by the next sweep
        self.swept += len(done)
        self.overdue += len(closes)
        if done or closes:
            log.info("swept", to_lanes=len(done), overdue=len(closes), unsent=len(failed))

    def _reached(self, partitions: Collection[int], now_s: float) -> dict[int, int]:
        return {p: self._times[p].now_ms(now_s) for p in partitions if p in self._times}
