"""What a worker has received and finished of one partition, and how far it may commit.

Laws:
- A commit never passes a received offset that is not done. Offsets that never came (compaction, transaction
  markers) do not hold it back.
- Done means held elsewhere and acknowledged: a fact about the record, which outlives a rebalance in which the
  partition was retained. A completion from an epoch in which this tracker did not live is stale and ignored.
- An illegal event raises and changes nothing.

Records of one partition arrive in ascending order, and after a rebalance again from the committed offset on.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass
from enum import Enum

from services.core.done_map import SPAN, DoneSet, encode


class Received(Enum):
    """What to do with a record that came in."""

    NEW = "new"  # hold it
    KNOWN = "known"  # its task is held already: attach the record to it
    DONE = "done"  # finished earlier: skip it


class Completion(Enum):
    """What became of a completion."""

    COUNTED = "counted"
    AGAIN = "again"  # it was done already
    STALE = "stale"  # from an epoch before this tracker was made: ignored


class NeverReceivedError(LookupError):
    """A completion of an offset that this tracker never saw."""


class BelowStartError(ValueError):
    """A record below the assignment's start: the log was reset or made anew, so the tracker must be too."""


@dataclass(frozen=True, slots=True)
class Commit:
    """`offset` is the next one to read; `done_map` is the commit's metadata (at most 4,096 ASCII bytes)."""

    offset: int
    done_map: str


class PartitionTracker:
    """One partition as long as it stays assigned. O(1) per operation, amortised over ascending receives."""

    __slots__ = (
        "_dirty",
        "_done",
        "_epoch",
        "_first_epoch",
        "_held",
        "_next",
        "_order",
        "_start",
        "_uncommitted",
        "_watermark",
    )

    def __init__(self, epoch: int, start_offset: int, done: DoneSet | None = None) -> None:
        """`start_offset` is the position at assignment, `done` what its commit's done-map named."""
        self._first_epoch = self._epoch = epoch
        self._start = self._watermark = self._next = start_offset
        self._done = done.copy() if done is not None else DoneSet()
        self._held: set[int] = set()
        # Received, ascending; what is done leaves when it reaches the front.
        self._order: deque[int] = deque()
        self._dirty = False
        self._uncommitted = 0

    @property
    def first_epoch(self) -> int:
        """The epoch in which it was made: completions of earlier ones are stale."""
        return self._first_epoch

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def watermark(self) -> int:
        """The lowest received offset that is not done, or the next one expected."""
        return self._watermark

    @property
    def head(self) -> int | None:
        """The held offset that keeps the watermark where it is, or None when nothing is held."""
        return self._order[0] if self._order else None

    @property
    def held(self) -> int:
        """How many offsets are received and not done."""
        return len(self._held)

    @property
    def uncommitted(self) -> int:
        """Completions since the last `commit`."""
        return self._uncommitted

    def span_left(self) -> int:
        """How many more offsets fit before the done-map is full; at 0 stop polling the partition.

        A gap may carry a poll beyond the span. Such records are tracked; only the done-map leaves them out,
        so that a crash before the head is done runs them again.
        """
        return max(0, SPAN - (self._next - self._watermark))

    def received(self, offset: int) -> Received:
        """Take note of a record. Raises BelowStartError for one from below the assignment's start."""
        if offset < self._start:
            raise BelowStartError(f"offset {offset} is below the start {self._start}")
        if offset < self._watermark or offset in self._done:
            self._pass_by(offset)
            return Received.DONE
        if offset in self._held:
            return Received.KNOWN
        self._held.add(offset)
        if offset >= self._next:
            self._order.append(offset)
            self._next = offset + 1
        else:  # was taken for a gap: the log never does this, a tracker must survive it
            insort(self._order, offset)
        self._watermark = self._order[0]
        return Received.NEW

    def done(self, offset: int, epoch: int) -> Completion:
        """Count a completion. Raises NeverReceivedError for an offset that was never received."""
        if not self._first_epoch <= epoch <= self._epoch:
            return Completion.STALE
        if offset not in self._held:
            if offset < self._watermark or offset in self._done:
                return Completion.AGAIN
            raise NeverReceivedError(f"offset {offset} was never received")
        self._held.remove(offset)
        self._dirty = True
        self._uncommitted += 1
        if offset == self._order[0]:
            self._advance()
        else:
            self._done.add(offset)
        return Completion.COUNTED

    def commit(self) -> Commit | None:
        """What to commit now, or None when nothing changed since the last call."""
        if not self._dirty:
            return None
        self._dirty = False
        self._uncommitted = 0
        return Commit(self._watermark, encode(self._done, self._watermark))

    def commit_failed(self) -> None:
        """The broker did not take what `commit` gave: it stays due."""
        self._dirty = True

    def reassigned(self, epoch: int) -> None:
        """The partition was retained over a rebalance: keep everything; uncommitted records come again."""
        if epoch <= self._epoch:
            raise ValueError(f"epoch {epoch} does not follow {self._epoch}")
        self._epoch = epoch

    def _pass_by(self, offset: int) -> None:
        """A record that is done came by: the end of what was seen may move."""
        if offset < self._next:
            return
        self._next = offset + 1
        if not self._order:
            self._advance()
            self._dirty = True

    def _advance(self) -> None:
        order, held = self._order, self._held
        while order and order[0] not in held:
            order.popleft()
        self._watermark = order[0] if order else self._next
        self._done.drop_below(self._watermark)
