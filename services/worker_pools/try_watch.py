"""Ends a try from outside: a guard that came due, a cancel, the drain.

One timer for each try, armed again only when it fires: guards move back with every chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from schemas.failures import FailureKind

_FROZEN_S = 0.25  # a timer that fires so late was not held up by work
_GRACE_S = 0.25

Cause = Literal["guard", "cancel", "superseded", "evict", "drain"]
Due = Callable[[], tuple[float, FailureKind]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a try was ended: a guard of kind `kind`, a cancel of the task with its `reason`, a cancel of this
    attempt alone (its task goes on elsewhere), more urgent work that needs the slot, or the drain."""

    cause: Cause
    kind: FailureKind
    reason: str = ""


class TryWatch:
    """Made by the asyncio task that runs the try. After `finish` nothing can end it any more.

    `due` gives the next guard's time on the loop's clock. A guard may move back freely; `rearm` when one may
    have moved forward. `content`: the backend said something that a client may have.
    """

    __slots__ = ("_due", "_finished", "_loop", "_spared", "_task", "_timer", "content", "verdict")

    def __init__(self, due: Due) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a try runs in an asyncio task")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._due = due
        self._finished = False
        self.verdict: Verdict | None = None
        self.content = False
        self._spared = False  # once, after this process stood still
        self._timer = self._loop.call_at(due()[0], self._fire)

    @property
    def over(self) -> bool:
        """Nothing can end it any more."""
        return self._finished or self.verdict is not None

    def guard(self, due: Due) -> None:
        """Other guards from now on."""
        self._due = due
        self.rearm()

    def rearm(self) -> None:
        self._timer.cancel()
        if not self._finished and self.verdict is None:
            self._timer = self._loop.call_at(self._due()[0], self._fire)

    def stop(self, verdict: Verdict) -> bool:
        """Ends the try; False where it is over already. The first verdict stands."""
        if self.over:
            return False
        self.verdict = verdict
        self._timer.cancel()
        self._task.cancel()
        return True

    def caught(self) -> Verdict:
        """For the CancelledError that `stop` caused; raises it again where somebody else cancelled."""
        if self.verdict is None or self._task.uncancel() > 0:
            raise asyncio.CancelledError
        return self.verdict

    def finish(self) -> None:
        self._finished = True
        self._timer.cancel()

    def _fire(self) -> None:
        due_s, kind = self._due()
        late_s = self._loop.time() - due_s
        if late_s < 0:
            self._timer = self._loop.call_at(due_s, self._fire)
        elif late_s > _FROZEN_S and kind is not FailureKind.DEADLINE and not self._spared:
            # This process stood still: what the backend said meanwhile is in the socket, and is read first.
            self._spared = True
            self._timer = self._loop.call_later(_GRACE_S, self._fire)
        else:
            self.stop(Verdict("guard", kind))
