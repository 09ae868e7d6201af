"""Which partitions are silent although they are asked for: the pure half of the watchdog.

Law: a partition that nobody polls is never suspected (back-pressure), nor is one behind others that keep
max_records full. A suspicion is no proof: whoever has it asks the broker whether there is anything to read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class StallWatch:
    """Fed by every poll. Times are seconds of one monotonic clock; `silent_s` is the patience."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._pause_s = silent_s / 4  # a longer gap between polls is back-pressure
        self._since: dict[int, float] = {}
        self._ended_s = float("-inf")
        self._drained_s = float("-inf")
        self._running_since_s: float | None = None

    def forget(self) -> None:
        """The partitions changed: everything begins anew."""
        self._since.clear()

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
        """Partitions that were asked for without a break and gave nothing for `silent_s`."""
        running = self._running_since_s
        if running is not None and now_s - running >= self._silent_s:
            return sorted(self._since)  # the poll itself does not come back
        if running is None and now_s - self._ended_s > self._pause_s:
            return []
        if now_s - self._drained_s > self._silent_s / 2:
            return []
        return sorted(p for p, since_s in self._since.items() if now_s - since_s >= self._silent_s)
