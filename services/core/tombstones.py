"""Cancelled tasks, or single attempts of them, remembered until their deadline."""

from heapq import heappop, heappush


class Tombstones:
    """A task past its deadline runs nowhere, so its stone may go. The first reason given stands."""

    __slots__ = ("_due", "_stones")

    def __init__(self) -> None:
        self._stones: dict[tuple[str, str | None], tuple[str, float]] = {}
        self._due: list[tuple[float, str, str]] = []

    def __len__(self) -> int:
        return len(self._stones)

    def add(self, task_id: str, attempt: str | None, reason: str, deadline_s: float) -> None:
        """Cancel a task, or with `attempt` that attempt alone. A later deadline lengthens its life."""
        key = (task_id, attempt)
        standing = self._stones.get(key)
        if standing is not None:
            if standing[1] >= deadline_s:
                return
            reason = standing[0]
        self._stones[key] = (reason, deadline_s)
        # None cannot be compared with a string when deadline and task are equal.
        heappush(self._due, (deadline_s, task_id, attempt or ""))

    def cancelled(self, task_id: str, attempt: str | None = None) -> str | None:
        """Why the task, or this attempt of it, must not run; None when it may."""
        stone = self._stones.get((task_id, None))
        if stone is None and attempt is not None:
            stone = self._stones.get((task_id, attempt))
        return None if stone is None else stone[0]

    def purge(self, now_s: float, at_most: int = 256) -> int:
        """Drop stones whose deadline is past, looking at no more than `at_most`; returns how many went."""
        gone = 0
        for _ in range(at_most):
            if not self._due or self._due[0][0] > now_s:
                break
            _, task_id, attempt = heappop(self._due)
            key = (task_id, attempt or None)
            stone = self._stones.get(key)
            if stone is not None and stone[1] <= now_s:
                del self._stones[key]
                gone += 1
        return gone
