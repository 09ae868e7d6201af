"""Cancelled tasks, remembered until their deadline."""

from heapq import heappop, heappush


class Tombstones:
    """A task past its deadline runs nowhere, so its stone may go. The first reason given stands."""

    __slots__ = ("_due", "_stones")

    def __init__(self) -> None:
        self._stones: dict[str, tuple[str, float]] = {}
        self._due: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._stones)

    def add(self, task_id: str, reason: str, deadline_s: float) -> None:
        """Cancel a task. A later deadline lengthens the stone's life."""
        standing = self._stones.get(task_id)
        if standing is not None:
            if standing[1] >= deadline_s:
                return
            reason = standing[0]
        self._stones[task_id] = (reason, deadline_s)
        heappush(self._due, (deadline_s, task_id))

    def cancelled(self, task_id: str) -> str | None:
        """Why the task must not run; None when it may."""
        stone = self._stones.get(task_id)
        return None if stone is None else stone[0]

    def purge(self, now_s: float, at_most: int = 256) -> int:
        """Drop stones whose deadline is past, looking at no more than `at_most`; returns how many went."""
        gone = 0
        for _ in range(at_most):
            if not self._due or self._due[0][0] > now_s:
                break
            _, task_id = heappop(self._due)
            stone = self._stones.get(task_id)
            if stone is not None and stone[1] <= now_s:
                del self._stones[task_id]
                gone += 1
        return gone
