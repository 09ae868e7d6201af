"""A task that this worker holds, from the record that brought it to its terminal record's acknowledgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from schemas.headers import TaskHeaders
from schemas.messages import Envelope
from services.core.reroute import TaskFacts
from services.runtime.group_offsets import Place

if TYPE_CHECKING:
    from services.worker_pools.try_watch import TryWatch


class Position(NamedTuple):
    """Where a lane record stands: the lane's priority, and the place in it."""

    priority: str
    place: Place

    @property
    def spot(self) -> tuple[str, int, int]:
        """Priority, partition and offset: the same in whichever assignment it was read."""
        return self.priority, self.place.partition, self.place.offset


class Phase(Enum):
    QUEUED = "queued"  # waits for a slot, or for its next try
    TRYING = "trying"  # has a slot
    SETTLING = "settling"  # what its end means is being written


@dataclass(slots=True, eq=False)
class Held:
    """`positions`: all offsets that are done when this task is let go. `newer`: the records of those that
    came while its end was being written: one of them may be what holds the task next.

    `attempt` is the current or the last try; `lent` says that its `parked` row names this worker as holder,
    so that it must be renewed; `lane_value` is the record's value, never re-encoded; `claimed_value` stands
    for it in an envelope that could not carry it.
    """

    task_id: str
    priority: str
    lane: str
    headers: TaskHeaders
    lane_headers: tuple[tuple[str, bytes], ...]
    lane_value: bytes
    written_ms: int
    redelivered: bool
    origin: tuple[int, int]  # partition and offset of the record that brought it
    positions: list[Position] = field(default_factory=list)
    newer: dict[tuple[str, int, int], Held] = field(default_factory=dict)
    phase: Phase = Phase.QUEUED
    attempt: str | None = None
    watch: TryWatch | None = None
    lent: bool = False
    moving: bool = False  # another lane is to hold it, and its lane record does until then: no row may
    tenant: str = "default"
    claimed_value: bytes | None = None
    rides: bool = False  # it is tried in the slot of another task, whose call it shares
    facts: TaskFacts | None = None  # what its value says, once somebody had to know before it starts
    started_s: float = 0.0  # of its current or last stay in a slot, on the worker's clock
    used_tokens: float | None = None  # weighted, by the last try; None where no try ran
    shares_call: bool = False  # other tasks may ride in its slot, which its end does not free
    evictions: int = 0
    failed_at: str | None = None  # the backend of the last failed try: the next one goes elsewhere if it can

    @property
    def size_bytes(self) -> int:
        return len(self.lane_value)

    def at(self, priority: str, partition: int, offset: int) -> bool:
        return any(position.spot == (priority, partition, offset) for position in self.positions)

    def envelope(self) -> Envelope:
        """The lane record as it would be written now. Raises UnicodeDecodeError: its value is no text."""
        value = self.claimed_value or self.lane_value
        return Envelope.model_construct(
            lane=self.lane, headers=self.headers.to_text(), value=value.decode("utf-8")
        )
