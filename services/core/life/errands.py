"""What goes between the bookkeeper and its store: batches to apply, records to keep, tasks that are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.core.life.rows import LogEntry


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record of a type or major that this version does not know, as it was; `kept_key` is its name."""

    kept_key: str
    partition: int
    stamp_ms: int
    type: str
    major: str
    task_key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class LogBatch:
    """What one transaction applies: entries in log order, records to keep, kept ones that are now applied."""

    entries: Sequence[LogEntry] = ()
    keep: Sequence[KeptRecord] = ()
    unkeep: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TakenTask:
    """A parked task that the sweep took: it goes to `lane` with its headers and its untouched value.

    attempt and stamp_ms say which state of the row was taken: only that one is marked swept.
    """

    task_id: str
    partition: int
    attempt: str
    stamp_ms: int
    deadline_ms: int
    lane: str
    headers: Mapping[str, str]
    value: bytes


@dataclass(frozen=True, slots=True)
class OverdueTask:
    """A parked task whose deadline has passed."""

    task_id: str
    partition: int
    request_id: str
