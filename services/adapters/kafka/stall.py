"""Which partitions are silent although they are asked for and have records: the watch behind the watchdog.

Law: a partition that nobody polls is never suspected (back-pressure), nor is one behind others that keep
max_records full. After half the patience a partition is suspected and the broker is asked; it counts as
stalled when it has had unread records, and polls, for the other half: a record that arrives just then is no
stall.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from services.ports import BusError


class StallWatch:
    """Fed by every poll. Times are seconds of one monotonic clock."""

    def __init__(self, patience_s: float) -> None:
        self._silent_s = patience_s / 2
        self._pause_s = patience_s / 8  # a longer gap between polls is back-pressure
        self._since: dict[int, float] = {}
        self._behind: dict[int, float] = {}
        self._ended_s = float("-inf")
        self._drained_s = float("-inf")
        self._running_since_s: float | None = None

    def forget(self) -> None:
        """The partitions changed: everything begins anew."""
        self._since = {}
        self._behind = {}

    def began(self, wanted: Collection[int], now_s: float) -> None:
        """A poll of `wanted` begins."""
        self._running_since_s = now_s
        if now_s - self._ended_s > self._pause_s:
            self._since = dict.fromkeys(wanted, now_s)
        elif self._since.keys() != wanted:
            self._since = {partition: self._since.get(partition, now_s) for partition in wanted}

    def ended(self, returned: Iterable[int], now_s: float, *, drained: bool) -> None:
        """The poll ended with records of `returned`; `drained`: it left none of those it wanted behind."""
        self._running_since_s = None
        self._ended_s = now_s
        if drained:
            self._drained_s = now_s
        for partition in returned:
            if partition in self._since:
                self._since[partition] = now_s

    def suspects(self, now_s: float) -> list[int]:
        """Partitions that were asked for without a break and gave nothing for half the patience."""
        running = self._running_since_s
        if running is not None and now_s - running >= self._silent_s:
            return sorted(self._since)  # the poll itself does not come back
        if running is None and now_s - self._ended_s > self._pause_s:
            return []
        if now_s - self._drained_s > self._silent_s / 2:
            return []
        return sorted(p for p, since_s in self._since.items() if now_s - since_s >= self._silent_s)

    def stalled(self, behind: Collection[int], now_s: float) -> list[int]:
        """Of the suspects that were found to have unread records, those that have had them for long enough.

        To be told after every look at the suspects: one that is not named starts anew.
        """
        self._behind = {partition: self._behind.get(partition, now_s) for partition in behind}
        return sorted(p for p, since_s in self._behind.items() if now_s - since_s >= self._silent_s)


class StallCheck:
    """Asks the broker about the suspects of a watch.

    `ends` gives the end of partitions and may raise BusError; `position` the next offset to be read, None for
    a partition that is gone; `forgetful`: the broker may lose its log: a position then lies beyond the end.
    """

    def __init__(
        self,
        watch: StallWatch,
        *,
        ends: Callable[[Collection[int]], Awaitable[dict[int, int]]],
        position: Callable[[int], Awaitable[int | None]],
        forgetful: bool,
    ) -> None:
        self._watch, self._ends, self._position = watch, ends, position
        self._forgetful = forgetful

    async def why_stalled(self, now_s: float) -> str | None:
        """What is wrong, for the log, or None. A broker that does not answer is no stall."""
        suspects = self._watch.suspects(now_s)
        try:
            ends = await self._ends(suspects) if suspects else {}
        except BusError:
            ends = {}
        behind = [partition for partition, end in ends.items() if await self._stands_off(partition, end)]
        stalled = self._watch.stalled(behind, now_s)
        return f"partitions {stalled} have unread records, and polls bring none" if stalled else None

    async def _stands_off(self, partition: int, end: int) -> bool:
        at = await self._position(partition)
        return at is not None and (at < end or (at > end and self._forgetful))
