"""Which tasks this worker ended a short while ago, for records of them that come again."""

from collections import OrderedDict


class RecentlyDone:
    """Bounded in age and count: the oldest leave first, and a redelivery later than that runs once more."""

    __slots__ = ("_ended_s", "_max_ids", "_window_s")

    def __init__(self, window_s: float = 600.0, max_ids: int = 100_000) -> None:
        self._window_s = window_s
        self._max_ids = max_ids
        self._ended_s: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended_s)

    def add(self, task_id: str, now_s: float) -> None:
        self._ended_s[task_id] = now_s
        self._ended_s.move_to_end(task_id)
        if len(self._ended_s) > self._max_ids:
            self._ended_s.popitem(last=False)
        self._forget(now_s)

    def ended(self, task_id: str, now_s: float) -> bool:
        """Whether the task ended within the window before `now_s`."""
        ended_s = self._ended_s.get(task_id)
        return ended_s is not None and now_s - ended_s <= self._window_s

    def _forget(self, now_s: float) -> None:
        """At most two per call: one more than came in, so that the age bound holds without a sweep."""
        for _ in range(2):
            oldest = next(iter(self._ended_s.items()), None)
            if oldest is None or now_s - oldest[1] <= self._window_s:
                return
            self._ended_s.popitem(last=False)
