"""Which partition a record goes to: stable where readers must agree, by load where any will do."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from schemas.messages import Affinity

RandomUnit = Callable[[], float]

LIGHT_S = 0.1
"""Queue seconds per slot that no warm prefix is worth leaving for."""
LIGHT_MOST_S = 2.0
LIGHT_FACTOR = 2.0
"""Above LIGHT_S an owner is lightly loaded below LIGHT_MOST_S and below this times the best of its lane."""


def stable_partition(name: str, partitions: int) -> int:
    """The same partition for the same name, in every process and release (CRC-32 of its UTF-8)."""
    return zlib.crc32(name.encode()) % partitions


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane as its publisher sees it.

    ready: partitions owned by workers that take work, empty where none is known; avoid: owned by dead or
    draining ones. queue_s: the owner's queue seconds per slot, 0 where nobody knows; own: this publisher's
    tasks in flight there.
    """

    partitions: int
    ready: Sequence[int] = ()
    avoid: Collection[int] = ()
    queue_s: Callable[[int], float] = lambda _: 0.0
    own: Callable[[int], int] = lambda _: 0

    def choices(self) -> Sequence[int]:
        """The partitions that may be chosen; never empty."""
        if self.ready:
            return self.ready
        return [p for p in range(self.partitions) if p not in self.avoid] or range(self.partitions)


def place(lane: LaneView, session_id: str | None, affinity: Affinity, random_unit: RandomUnit) -> int:
    """The partition for a task.

    sticky: its session's own one, always. soft: the session's own while its owner is lightly loaded, else as
    off. off, or no session: the better of two drawn at random (power of two choices), by the owner's queue
    seconds per slot, then by this publisher's own tasks in flight.
    """
    if session_id is not None and affinity != "off":
        own = stable_partition(session_id, lane.partitions)
        if affinity == "sticky" or _is_light(lane, own):
            return own
    choices = lane.choices()
    first = _drawn(len(choices), random_unit)
    if len(choices) < 2:
        return choices[first]
    second = (first + 1 + _drawn(len(choices) - 1, random_unit)) % len(choices)
    return min((choices[first], choices[second]), key=lambda p: (lane.queue_s(p), lane.own(p)))


def _is_light(lane: LaneView, partition: int) -> bool:
    if partition in lane.avoid or (lane.ready and partition not in lane.ready):
        return False
    queue_s = lane.queue_s(partition)
    if queue_s <= LIGHT_S:
        return True
    best_s = min((lane.queue_s(other) for other in lane.choices()), default=queue_s)
    return queue_s < LIGHT_MOST_S and queue_s < LIGHT_FACTOR * best_s


def _drawn(choices: int, random_unit: RandomUnit) -> int:
    return min(int(random_unit() * choices), choices - 1)


def mint_for_partition(mint: Callable[[], str], partition: int, partitions: int) -> str:
    """An id whose stable partition is the given one: about `partitions` draws."""
    while True:
        name = mint()
        if stable_partition(name, partitions) == partition:
            return name
