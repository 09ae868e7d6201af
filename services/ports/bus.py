"""Topics: what is written, what is read, and by whom."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from schemas.headers import WireHeaders


class BusError(Exception):
    """The broker did not take or give a record in time. What was sent may or may not be there."""


class RecordTooLargeError(BusError):
    """The record is larger than its topic takes: sending the same again cannot help."""


class CommitRefused(BusError):  # noqa: N818 - reads as the outcome it is
    """The group moved on: the partitions belong to somebody else, who will do the work again."""


_AROUND_RECORD = 61 + 21  # what Kafka writes around a batch, and around its one record, at most
_AROUND_TEXT = 5  # a length, at most


@dataclass(frozen=True, slots=True)
class OutRecord:
    """A record to publish. `partition` None leaves the choice to the key's hash."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: WireHeaders = field(default_factory=list)
    partition: int | None = None

    def size_bytes(self) -> int:
        """At most what it takes uncompressed, headers and a batch of its own included."""
        texts = [self.key or b"", self.value or b""]
        for name, value in self.headers:
            texts += (name.encode(), value)
        return _AROUND_RECORD + sum(map(len, texts)) + _AROUND_TEXT * (len(texts) + 1)


@dataclass(frozen=True, slots=True)
class InRecord:
    """A record read. `timestamp_ms` is the broker's or the producer's, epoch milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Publisher(Protocol):
    """Sends records. One for what must not be lost, another one for token traffic.

    `post_faults` counts posts that were not acknowledged, `recreated` producers that were given up.
    """

    post_faults: int
    recreated: int

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def send(self, record: OutRecord, *, timeout_s: float) -> None:
        """Returns once the broker acknowledged it (acks=all); raises BusError otherwise, RecordTooLargeError
        where another try would end alike."""
        ...

    async def post(self, record: OutRecord) -> Awaitable[None]:
        """Hands the record over in order and returns what can be awaited for its acknowledgement.

        Awaiting is optional: a fault that nobody awaits is logged and counted, never raised elsewhere.
        """
        ...

    def away_s(self) -> float:
        """Seconds for which there has been no broker to send to; 0 while there seems to be one."""
        ...


@dataclass(frozen=True, slots=True)
class Assigned:
    """Where a partition stood when it was assigned: next offset to read, commit metadata, high-water mark."""

    offset: int
    metadata: str
    high_water: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`offset` is the next one to read; `metadata` (at most 4,096 bytes) may hold a done-map."""

    offset: int
    metadata: str = ""


class AssignmentListener(Protocol):
    """Told of a rebalance, in order. Both must return within a second."""

    async def revoked(self, partitions: Collection[int]) -> None:
        """All of them, before it is known which come back. `GroupSource.commit` may be called in here."""
        ...

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None: ...


class GroupSource(Protocol):
    """A member of a consumer group on one topic. Nothing is committed but what `commit` is told."""

    async def start(self, listener: AssignmentListener) -> None: ...
    async def stop(self) -> None: ...

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        """Records in offset order for each partition; with `partitions`, of those alone."""
        ...

    async def commit(self, commits: Mapping[int, Commit]) -> None:
        """Raises CommitRefused when the group has moved on, BusError when the broker does not answer."""
        ...

    def high_water(self, partition: int) -> int | None:
        """The offset after the newest record, as the last fetch saw it; None before the first."""
        ...

    def position(self, partition: int) -> int | None:
        """The next offset that poll will return."""
        ...

    def assignment(self) -> Collection[int]: ...


class LogReader(Protocol):
    """Reads partitions of a topic without a group (assign once, positions are our own)."""

    async def start(self, *, at: StartAt) -> None:
        """Returns when the position of every partition is known, so that what is sent after it is read."""
        ...

    async def stop(self) -> None: ...
    async def poll(self, *, timeout_ms: int, max_records: int) -> list[InRecord]: ...

    def silent_s(self) -> float:
        """Seconds since a poll saw an answer of the broker, with records or without; inf before `start`."""
        ...

    def caught_up(self) -> bool:
        """True once everything that was there at `start` has been returned by poll."""
        ...


@dataclass(frozen=True, slots=True)
class StartAt:
    """`end`: only what comes after; `beginning`; `time`: from `time_ms` on, if the broker can."""

    where: Literal["end", "beginning", "time"] = "end"
    time_ms: int | None = None
