"""The reading halves of the in-memory broker: a group member and a reader without a group."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from services.ports import (
    Assigned,
    AssignmentListener,
    BusError,
    Commit,
    CommitRefused,
    InRecord,
    StartAt,
)
from tests.fakes.bus import FakeBus


async def _polled(bus: FakeBus, read: Callable[[], list[InRecord]], timeout_ms: int) -> list[InRecord]:
    """What `read` returns as soon as it returns anything; [] after `timeout_ms`."""
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + timeout_ms / 1000
    while not (records := read()) and clock() < deadline_s:
        await bus._arrival(deadline_s - clock())
    return records


class FakeGroupSource:
    """GroupSource port: one member of `group` on `topic`."""

    def __init__(self, bus: FakeBus, *, topic: str, group: str) -> None:
        self._bus = bus
        self.topic, self.group = topic, group
        self._listener: AssignmentListener | None = None
        self._positions: dict[int, int] = {}
        self._high_waters: dict[int, int] = {}
        self._alive = False
        self._held = False  # until the listener was told of what is assigned

    async def start(self, listener: AssignmentListener) -> None:
        self._listener = listener
        self._alive = True
        await self._bus._join(self)

    async def stop(self) -> None:
        if not self._alive:
            return
        self._die()
        await self._bus._leave(self)

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        def read() -> list[InRecord]:
            if self._held or not self._bus._up.is_set():
                return []
            owned = self._positions.keys()
            wanted = owned if partitions is None else owned & set(partitions)
            for partition in wanted:
                self._high_waters[partition] = self._bus._end(self.topic, partition)
            return self._bus._read(self.topic, self._positions, wanted, max_records)

        return await _polled(self._bus, read, timeout_ms)

    async def commit(self, commits: Mapping[int, Commit]) -> None:
        if not commits:
            return
        if not self._alive or any(partition not in self._positions for partition in commits):
            raise CommitRefused(f"not assigned: some of {sorted(commits)} of {self.topic}")
        if not self._bus._up.is_set():
            raise BusError(f"commit to {self.group}: the broker does not answer")
        self._bus._group(self.group, self.topic).commits.update(commits)

    def high_water(self, partition: int) -> int | None:
        return self._high_waters.get(partition)

    def position(self, partition: int) -> int | None:
        return self._positions.get(partition)

    def assignment(self) -> Collection[int]:
        return frozenset(self._positions)

    def _die(self) -> None:
        self._alive = False
        self._positions, self._high_waters = {}, {}

    async def _revoke(self) -> None:
        if self._listener is not None and self._positions:
            await self._listener.revoked(frozenset(self._positions))
        self._positions, self._high_waters = {}, {}

    async def _assign(self, partitions: Sequence[int]) -> None:
        assert self._listener is not None
        commits = self._bus.commits(self.group)
        found = {p: self._assigned(p, commits.get(p, Commit(0))) for p in partitions}
        self._positions = {partition: assigned.offset for partition, assigned in found.items()}
        self._held = True
        await self._listener.assigned(found)
        self._held = False
        self._bus._arrivals.set()

    def _assigned(self, partition: int, commit: Commit) -> Assigned:
        return Assigned(commit.offset, commit.metadata, self._bus._end(self.topic, partition))


class FakeLogReader:
    """LogReader port."""

    def __init__(self, bus: FakeBus, *, topic: str, partitions: Collection[int]) -> None:
        self._bus = bus
        self._topic, self._partitions = topic, tuple(sorted(set(partitions)))
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._running = False

    async def start(self, *, at: StartAt) -> None:
        await self._bus._up.wait()
        self._ends = {partition: self._bus._end(self._topic, partition) for partition in self._partitions}
        self._positions = {partition: self._begin(partition, at) for partition in self._partitions}
        self._running = True

    async def stop(self) -> None:
        self._running = False

    async def poll(self, *, timeout_ms: int, max_records: int) -> list[InRecord]:
        def read() -> list[InRecord]:
            if not self._running or not self._bus._up.is_set():
                return []
            return self._bus._read(self._topic, self._positions, self._partitions, max_records)

        return await _polled(self._bus, read, timeout_ms)

    def silent_s(self) -> float:
        return self._bus.silent_s() if self._running else math.inf

    def caught_up(self) -> bool:
        return self._running and all(self._positions[p] >= end for p, end in self._ends.items())

    def position(self, partition: int) -> int | None:
        return self._positions.get(partition)

    def _begin(self, partition: int, at: StartAt) -> int:
        if at.where == "end":
            return self._ends[partition]
        if at.where == "beginning" or at.time_ms is None:
            return 0
        log = self._bus._log(self._topic)[partition]
        return next((r.offset for r in log if r.timestamp_ms >= at.time_ms), self._ends[partition])
