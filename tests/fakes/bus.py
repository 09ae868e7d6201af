"""An in-memory broker behind the bus ports, for fast tests of what talks through them.

Law: it promises what the contract suite (tests/contract/test_bus.py) holds against real brokers, and nothing
happens by itself: rebalances come from joins, leaves, deaths and `rebalance`, faults from the calls below.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import zlib
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.topics import MAX_RECORD_BYTES
from services.ports import BusError, Commit, InRecord, OutRecord, RecordTooLargeError

if TYPE_CHECKING:
    from tests.fakes.bus_readers import FakeGroupSource

Ack = asyncio.Future[None]


def _fail(ack: Ack, fault: BusError) -> None:
    if not ack.done():
        ack.set_exception(fault)
        ack.exception()  # retrieved: nobody need await it


@dataclass
class _Group:
    """Members in the order they joined, and what was committed by partition."""

    topic: str
    members: list[FakeGroupSource] = field(default_factory=list)
    commits: dict[int, Commit] = field(default_factory=dict)
    rebalancing: asyncio.Lock = field(default_factory=asyncio.Lock)


class FakeBus:
    """Topics, groups and the faults that a test asks for. One event loop."""

    def __init__(self, topics: Mapping[str, int] | None = None, *, first_timestamp_ms: int = 1_000) -> None:
        self._logs: dict[str, list[list[InRecord]]] = {}
        self._groups: dict[str, _Group] = {}
        self._timestamps = itertools.count(first_timestamp_ms)
        self._arrivals = asyncio.Event()
        self._refused_sends = 0
        self._lost_acks = 0
        self._up = asyncio.Event()
        self._up.set()
        self._frozen_at_s = 0.0
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def create_topic(self, name: str, partitions: int) -> None:
        self._logs[name] = [[] for _ in range(partitions)]

    def records(self, topic: str) -> list[InRecord]:
        """Everything in a topic, partition by partition."""
        return [record for log in self._logs[topic] for record in log]

    def commits(self, group: str) -> dict[int, Commit]:
        return dict(self._groups[group].commits) if group in self._groups else {}

    # Faults.

    def refuse_sends(self, count: int) -> None:
        """The next `count` records are not stored and end with BusError."""
        self._refused_sends = count

    def lose_acks(self, count: int) -> None:
        """The next `count` records that are not refused are stored, and end with BusError all the same."""
        self._lost_acks = count

    def freeze(self, *, for_s: float = 0.0) -> None:
        """Nothing answers until `thaw`: sends, commits and polls wait for their own time-outs.

        `for_s`: for how long that is said to have been so already.
        """
        self._up.clear()
        self._frozen_at_s = time.monotonic() - for_s

    def silent_s(self) -> float:
        """Seconds since it last answered."""
        return 0.0 if self._up.is_set() else time.monotonic() - self._frozen_at_s

    def thaw(self) -> None:
        self._up.set()
        self._arrivals.set()

    async def rebalance(self, group: str) -> None:
        """Revoke everything of everybody, then assign anew; uncommitted records come again."""
        state = self._groups[group]
        async with state.rebalancing:
            for member in tuple(state.members):
                await member._revoke()
            for member, partitions in self._shares(group):
                await member._assign(partitions)

    async def kill(self, member: FakeGroupSource) -> None:
        """A member dies without a word: it is told nothing, and the others take over."""
        member._die()
        await self._leave(member)

    # What the ports stand on.

    def _partition_of(self, record: OutRecord) -> int:
        count = len(self._log(record.topic))
        if record.partition is not None:
            if record.partition >= count:
                raise BusError(f"{record.topic}: no partition {record.partition}")
            return record.partition
        return zlib.crc32(record.key or b"") % count

    def _log(self, topic: str) -> list[list[InRecord]]:
        if topic not in self._logs:
            raise BusError(f"{topic}: no such topic")
        return self._logs[topic]

    def _store(self, record: OutRecord) -> None:
        """Append a record, or raise BusError as the faults asked for have it."""
        if record.key is None and record.value is None:
            raise BusError(f"{record.topic}: neither key nor value")
        partition = self._partition_of(record)
        if record.size_bytes() > MAX_RECORD_BYTES:
            raise RecordTooLargeError(f"{record.topic}: {record.size_bytes()} bytes")
        if self._refused_sends > 0:
            self._refused_sends -= 1
            raise BusError(f"{record.topic}: refused, as the test asked")
        log = self._log(record.topic)[partition]
        headers = tuple(record.headers)
        stamp = next(self._timestamps)
        log.append(InRecord(record.topic, partition, len(log), stamp, record.key, record.value, headers))
        self._arrivals.set()
        if self._lost_acks > 0:
            self._lost_acks -= 1
            raise BusError(f"{record.topic}: acknowledgement lost, as the test asked")

    def _end(self, topic: str, partition: int) -> int:
        return len(self._log(topic)[partition])

    def _read(
        self, topic: str, positions: dict[int, int], wanted: Iterable[int], most: int
    ) -> list[InRecord]:
        """Take up to `most` records and move the positions past them."""
        taken: list[InRecord] = []
        for partition in sorted(wanted):
            start = positions[partition]
            batch = self._log(topic)[partition][start : start + most - len(taken)]
            positions[partition] = start + len(batch)
            taken += batch
        return taken

    async def _arrival(self, timeout_s: float) -> None:
        """Return when something may have come, or after the time."""
        self._arrivals.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrivals.wait()
        except TimeoutError:
            return

    def _group(self, group: str, topic: str) -> _Group:
        return self._groups.setdefault(group, _Group(topic))

    async def _join(self, member: FakeGroupSource) -> None:
        self._group(member.group, member.topic).members.append(member)
        await self.rebalance(member.group)

    async def _leave(self, member: FakeGroupSource) -> None:
        members = self._groups[member.group].members
        if member in members:
            members.remove(member)
            await self.rebalance(member.group)

    def _shares(self, group: str) -> list[tuple[FakeGroupSource, list[int]]]:
        """Members with their partitions: round-robin, in the order of joining."""
        state = self._groups[group]
        count = len(self._log(state.topic))
        members = state.members
        return [(member, list(range(i, count, len(members)))) for i, member in enumerate(members)]


class FakePublisher:
    """Publisher port."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus
        self._running = False
        self._waiting: list[tuple[OutRecord, Ack]] = []
        self._delivery: asyncio.Task[None] | None = None
        self.post_faults = 0
        self.recreated = 0

    async def start(self) -> None:
        self._running = True

    async def stop(self) -> None:
        self._running = False
        if self._delivery is not None and not self._delivery.done():
            self._delivery.cancel()
            await asyncio.wait({self._delivery})
        for record, ack in self._waiting:
            _fail(ack, BusError(f"{record.topic}: the publisher was stopped"))
        self._waiting.clear()

    async def send(self, record: OutRecord, *, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._hand_over(record))
        except TimeoutError:
            raise BusError(f"{record.topic}: not acknowledged within {timeout_s:g} s") from None

    async def post(self, record: OutRecord) -> Awaitable[None]:
        ack = self._hand_over(record)
        ack.add_done_callback(self._note_post)
        return ack

    def away_s(self) -> float:
        return self._bus.silent_s()

    def _hand_over(self, record: OutRecord) -> Ack:
        ack: Ack = asyncio.get_running_loop().create_future()
        if not self._running:
            _fail(ack, BusError(f"{record.topic}: the publisher is stopped"))
            return ack
        self._waiting.append((record, ack))
        if self._bus._up.is_set():
            self._deliver()
        elif self._delivery is None or self._delivery.done():
            self._delivery = asyncio.create_task(self._deliver_once_up())
        return ack

    async def _deliver_once_up(self) -> None:
        await self._bus._up.wait()
        self._deliver()

    def _deliver(self) -> None:
        waiting, self._waiting = self._waiting, []
        for record, ack in waiting:
            try:
                self._bus._store(record)
            except BusError as fault:
                _fail(ack, fault)
            else:
                if not ack.done():
                    ack.set_result(None)

    def _note_post(self, ack: Ack) -> None:
        if not ack.cancelled() and ack.exception() is not None:
            self.post_faults += 1
