"""Why a worker starts nothing: each reason is held and released by its name, and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from schemas.fleet_messages import WorkerState

Reason = Literal["starting", "loading", "paused", "no_backend", "draining"]


class Gate:
    """Open while nobody holds it. `on_open` is called when the last reason goes, `on_change` at every one."""

    def __init__(self, *reasons: Reason) -> None:
        self._reasons: set[Reason] = set(reasons)
        self.on_open: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return not self._reasons

    @property
    def serves(self) -> bool:
        """Whether tasks are taken and ended at all, though none may start."""
        return self._reasons.isdisjoint(("starting", "draining"))

    @property
    def state(self) -> WorkerState:
        """What the fleet is told. A pause is the pool's, and known to all: it is no state of a worker."""
        if "draining" in self._reasons:
            return "draining"
        return "ready" if self._reasons.isdisjoint(("starting", "loading")) else "loading"

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(sorted(self._reasons))

    def hold(self, reason: Reason) -> None:
        if reason not in self._reasons:
            self._reasons.add(reason)
            self.on_change()

    def release(self, reason: Reason) -> None:
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons:
                self.on_open()
            self.on_change()
