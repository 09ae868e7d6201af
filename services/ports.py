"""What the services need from the outside, as Protocols. Adapters implement them, fakes pass the same suite.

Errors: an adapter translates its library's errors once, into the ones named here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from schemas.failures import FailureKind
from schemas.headers import WireHeaders
from schemas.messages import Failure
from services.core.fleet import Timeouts
from services.core.life.errands import KeptRecord, LogBatch, OverdueTask, TakenTask
from services.core.life.rows import Effect


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
    """Sends records. One for what must not be lost, another one for token traffic."""

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


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One try at a model. `body` is the JSON to POST; `streaming` whether the answer is read as SSE."""

    base_url: str
    path: str
    body: bytes
    attempt: str
    streaming: bool
    timeouts: Timeouts
    headers: Mapping[str, str] = field(default_factory=dict)


class BackendFault(Exception):  # noqa: N818 - a fault, by this project's words
    """A try failed. `message` is safe to show: never the backend's key or a prompt.

    The backend's own words are shown only for the kinds that are the caller's to mend.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.status = kind, message, status
        self.code, self.param, self.retry_after_s = code, param, retry_after_s


class ModelClient(Protocol):
    """Calls one kind of model backend. Cancelling the iteration closes the connection at once."""

    def events(self, call: ModelCall) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """Yields the JSON objects of the stream, in the batches they arrived in; an unstreamed answer is one.

        Ends after [DONE] or the end of the body. Raises BackendFault; connect and first-byte time-outs are
        enforced here, the guards on content by the caller.
        """
        ...

    async def aclose(self) -> None: ...


class BlobStore(Protocol):
    """Claim-checked payloads. `get`: KeyError when the blob is gone, ValueError when its bytes changed."""

    async def put(self, data: bytes) -> tuple[str, str]:
        """Stores the bytes and returns (key, hex SHA-256)."""
        ...

    async def get(self, key: str, sha256: str) -> bytes: ...

    async def age_out(self, older_than_s: float) -> int:
        """Removes what was last written that long ago; how many. Raises OSError."""
        ...


class Clock(Protocol):
    """The wall clock and sleep, so that tests can own time."""

    def now_s(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


RandomUnit = Callable[[], float]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """An Idempotency-Key of a tenant: whose task, for which body, and whether the broker has the task."""

    task_id: str
    body_sha256: str
    deadline_ms: int
    accepted: bool
    created_ms: int


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The outcome of an ended task as its `tasks` row has it. `answer` is JSON bytes, kept for 24 h."""

    state: Literal["succeeded", "failed", "closed"]
    pool: str
    model: str
    answer: bytes | None
    failure: Failure | None


class StoreError(Exception):
    """The database did not answer in time or refused; nothing is known of what was asked."""


class IdempotencyStore(Protocol):
    """Rows of `Idempotency-Key`, for the ingress. All raise StoreError."""

    async def claim_key(self, tenant: str, key: str, row: KeyRow) -> KeyRow:
        """Inserts the row if the key is free; returns the row that stands (the given one if it was free)."""
        ...

    async def mark_accepted(self, tenant: str, key: str, task_id: str) -> None: ...

    async def free_key(self, tenant: str, key: str, task_id: str) -> None:
        """Deletes the key if it is still this task's."""
        ...

    async def outcome(self, task_id: str) -> StoredOutcome | None:
        """The task's first terminal record, once the bookkeeper has written it."""
        ...

    async def ping(self) -> None: ...


class RowsRefused(StoreError):  # noqa: N818 - reads as the outcome it is
    """The database is there and refused the values themselves: trying the same again cannot help."""


class BookkeeperStore(Protocol):
    """The rows that `results` is folded into. All raise StoreError; of a call that raised, nothing is kept.

    `times` maps a partition to the time (ms) that its log has reached; other partitions are not touched.
    """

    async def apply(self, batch: LogBatch) -> Sequence[Effect]:
        """One transaction. Raises RowsRefused when the values cannot be stored, whoever tries."""

    async def take_due(self, times: Mapping[int, int], *, limit: int) -> Sequence[TakenTask]:
        """Moves due rows to `sweeping` and returns them, with those that a crash left there."""

    async def mark_swept(self, taken: Sequence[TakenTask]) -> None: ...
    async def overdue(self, times: Mapping[int, int], *, limit: int) -> Sequence[OverdueTask]: ...

    async def lose_tries(self, times: Mapping[int, int]) -> int:
        """Marks open tries as lost whose deadline was at or before the partition's time; how many."""

    async def newest_stamps(self, partitions: Collection[int]) -> Mapping[int, int]:
        """The newest record time (ms) among the parked rows of each partition that has any."""

    async def due_partitions(self, times: Mapping[int, int]) -> Collection[int]:
        """Partitions with a row for `take_due` or `overdue`."""

    async def kept(self, *, after: tuple[int, str] | None, limit: int) -> Sequence[KeptRecord]:
        """Kept records in the order of (stamp_ms, kept_key), those after `after`."""

    async def purge(self, now_ms: int) -> int:
        """Removes what is past its time to live; how many rows."""

    async def ping(self) -> None: ...
