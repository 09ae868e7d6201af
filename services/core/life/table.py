"""The law of a task's life as tables: records, their writers, and the moves of ledger and parked rows.

Law: a pair of state and step that a table does not have changes nothing. The log is read at least once, so
what was applied before must find no entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from schemas.failures import FailureKind
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CloseReason,
    Failure,
    Message,
    TaskClosed,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
)

Writer = Literal["worker", "owner", "bookkeeper"]


class LedgerState(StrEnum):
    OPEN = "open"
    LOST = "lost"
    ENDED = "ended"


class Verdict(StrEnum):
    """What an attempt was good for. The tenant pays for `outcome` and `failed`, nobody's is the rest."""

    OUTCOME = "outcome"  # it ran to the record that decided
    FAILED = "failed"  # it failed on the tenant's account, and the provider charges for such failures
    WASTE = "waste"  # superseded, evicted, behind the outcome, or failed at no charge
    LOST = "lost"  # nobody knows its end


class LedgerStep(StrEnum):
    OPEN = "open"
    END = "end"
    LOSE = "lose"


LEDGER_MOVES: Mapping[tuple[LedgerState | None, LedgerStep], LedgerState] = {
    (None, LedgerStep.OPEN): LedgerState.OPEN,
    (None, LedgerStep.END): LedgerState.ENDED,
    (LedgerState.OPEN, LedgerStep.END): LedgerState.ENDED,
    (LedgerState.OPEN, LedgerStep.LOSE): LedgerState.LOST,
    (LedgerState.LOST, LedgerStep.END): LedgerState.ENDED,
}


class ParkedState(StrEnum):
    """`parked` and `sweeping` hold the task; `swept` and `moved` only mark that a lane holds it."""

    PARKED = "parked"
    SWEEPING = "sweeping"
    SWEPT = "swept"
    MOVED = "moved"


class ParkedStep(StrEnum):
    """NEW: by an attempt that never touched the row before. OWN: by the attempt whose row it is."""

    PARK_NEW = "park_new"
    PARK_OWN = "park_own"
    RENEW = "renew"
    MOVE_NEW = "move_new"
    MOVE_OWN = "move_own"
    TAKE = "take"  # by the sweep: compare and set, before it publishes
    MARK = "mark"  # by the sweep: after the lane acknowledged


PARKED_MOVES: Mapping[tuple[ParkedState | None, ParkedStep], ParkedState] = {
    **{(state, ParkedStep.PARK_NEW): ParkedState.PARKED for state in (None, *ParkedState)},
    **{(state, ParkedStep.MOVE_NEW): ParkedState.MOVED for state in (None, *ParkedState)},
    (ParkedState.PARKED, ParkedStep.PARK_OWN): ParkedState.PARKED,
    (ParkedState.PARKED, ParkedStep.RENEW): ParkedState.PARKED,
    (ParkedState.PARKED, ParkedStep.MOVE_OWN): ParkedState.MOVED,
    (ParkedState.PARKED, ParkedStep.TAKE): ParkedState.SWEEPING,
    (ParkedState.SWEEPING, ParkedStep.TAKE): ParkedState.SWEEPING,  # left by a crash: published again
    (ParkedState.SWEEPING, ParkedStep.MARK): ParkedState.SWEPT,
}


class Parking(StrEnum):
    """What a record says about where the task is."""

    PARKS = "parks"
    MOVES = "moves"


@dataclass(frozen=True, slots=True)
class RecordLaw:
    """Who writes a record and when, and its steps. `terminal`: the first of them is the outcome."""

    writers: tuple[Writer, ...]
    when: str
    ledger: LedgerStep | None = None
    parking: Parking | None = None
    terminal: bool = False


def _try_over(when: str, parking: Parking | None = None) -> RecordLaw:
    return RecordLaw(("worker",), when, LedgerStep.END, parking)


RECORDS: Mapping[str, RecordLaw] = {
    "AttemptStarted": RecordLaw(
        ("worker",), "a try is 50 ms old or has content; before the start if redelivered", LedgerStep.OPEN
    ),
    "AttemptFailed.local": _try_over("a try is over, the task waits in the worker"),
    "AttemptFailed.parked": _try_over("a try is over, the task waits in a row", Parking.PARKS),
    "AttemptFailed.moved": _try_over("a try is over, the task is on another lane", Parking.MOVES),
    "AttemptFailed.closed": _try_over("a try is over, the task was closed or superseded meanwhile"),
    "TaskParked": RecordLaw(
        ("worker",),
        "a worker lets the lane record go and keeps the task; later, without envelope, to renew",
        None,
        Parking.PARKS,
    ),
    "TaskSucceeded": RecordLaw(("worker",), "the task is done", LedgerStep.END, None, terminal=True),
    "TaskFailed": RecordLaw(("worker",), "the task cannot be done", LedgerStep.END, None, terminal=True),
    "TaskClosed": RecordLaw(
        ("owner", "bookkeeper"), "the task is over without a worker's word", None, None, terminal=True
    ),
}

CLOSE_FAILURES: Mapping[CloseReason, Failure] = {
    "cancelled": Failure(kind=FailureKind.CANCELLED, message="The task was cancelled."),
    "deadline": Failure(kind=FailureKind.DEADLINE, message="The deadline passed."),
    "interrupted": Failure(
        kind=FailureKind.INTERRUPTED,
        message="The attempt behind this stream was lost after it had begun.",
        code="stream_interrupted",
    ),
    "superseded": Failure(kind=FailureKind.INTERNAL, message="The task was superseded by another."),
    "poison": Failure(kind=FailureKind.POISON, message="The task's tries kept dying."),
}
"""What a close means to the caller and in the task's row."""

TENANTS_OWN_ENDS: frozenset[CloseReason] = frozenset({"cancelled", "deadline"})
"""Closes that are the tenant's own doing: a billed try that they end is on the tenant's account."""

_BY_TYPE: Mapping[type[Message], RecordLaw] = {
    AttemptStarted: RECORDS["AttemptStarted"],
    TaskParked: RECORDS["TaskParked"],
    TaskSucceeded: RECORDS["TaskSucceeded"],
    TaskFailed: RECORDS["TaskFailed"],
    TaskClosed: RECORDS["TaskClosed"],
}


def law_of(message: Message) -> RecordLaw | None:
    """The law of a message, or None for one that is not a record of `results`."""
    if isinstance(message, AttemptFailed):
        return RECORDS[f"AttemptFailed.{message.next}"]
    return _BY_TYPE.get(type(message))
