"""What outlives a process: blobs, and the rows of the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.messages import Failure
from services.core.life.errands import KeptRecord, LogBatch, OverdueTask, TakenTask
from services.core.life.rows import Effect


class BlobStore(Protocol):
    """Claim-checked payloads. `get`: KeyError when the blob is gone, ValueError when its bytes changed."""

    async def put(self, data: bytes) -> tuple[str, str]:
        """Stores the bytes and returns (key, hex SHA-256)."""
        ...

    async def get(self, key: str, sha256: str) -> bytes: ...

    async def age_out(self, older_than_s: float) -> int:
        """Removes what was last written that long ago; how many. Raises OSError."""
        ...


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

    async def open_workers(self, partitions: Collection[int]) -> Collection[str]:
        """Workers with open tries in these partitions."""

    async def lose_tries_of(self, workers: Collection[str], partitions: Collection[int], at_ms: int) -> int:
        """Marks the open tries of these workers, in these partitions, as lost at `at_ms`; how many."""

    async def newest_stamps(self, partitions: Collection[int]) -> Mapping[int, int]:
        """The newest record time (ms) among the parked rows of each partition that has any."""

    async def due_partitions(self, times: Mapping[int, int]) -> Collection[int]:
        """Partitions with a row for `take_due` or `overdue`."""

    async def kept(self, *, after: tuple[int, str] | None, limit: int) -> Sequence[KeptRecord]:
        """Kept records in the order of (stamp_ms, kept_key), those after `after`."""

    async def purge(self, now_ms: int) -> int:
        """Removes what is past its time to live; how many rows."""

    async def ping(self) -> None: ...
