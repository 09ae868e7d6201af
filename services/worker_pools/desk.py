"""Which tasks this worker holds, and the only way in and out: taken once, let go of once, by task_id."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.failures import FailureKind
from services.core.recently_done import RecentlyDone
from services.core.tombstones import Tombstones
from services.ports import Clock
from services.worker_pools.backlog import Backlog
from services.worker_pools.held import Held, Phase, Position
from services.worker_pools.try_watch import Cause, Verdict


class Desk:
    """`done` completes a position in its lane's tracker. `closing`: what is queued now never starts.

    `again` takes a record that came before the task it continues was let go of.
    """

    def __init__(self, backlog: Backlog, clock: Clock, done: Callable[[Position], None]) -> None:
        self.backlog = backlog
        self.stones = Tombstones()
        self._clock = clock
        self._done = done
        self._held: dict[str, Held] = {}
        self._ended = RecentlyDone()
        self.closing = False
        self.again: Callable[[Held, Position], object] = self.take

    def __len__(self) -> int:
        return len(self._held)

    def get(self, task_id: str) -> Held | None:
        return self._held.get(task_id)

    def all(self) -> Iterable[Held]:
        return tuple(self._held.values())

    def take(self, held: Held, position: Position) -> str | None:
        """A record came: the task is queued, or attached to what is held, or done at once.

        Returns why it must not run where it is cancelled; it is then held, and the caller prunes it.
        """
        now_s = self._clock.now_s()
        known = self._held.get(held.task_id)
        if known is not None:
            if not known.at(*position.spot):
                known.positions.append(position)  # both offsets are done together
                if known.phase is Phase.SETTLING:
                    known.newer[position.spot] = held
            return None
        if self._ended.ended(held.task_id, now_s) or self._ended.ended(_parked_key(held), now_s):
            self._done(position)
            return None
        held.positions.append(position)
        self._held[held.task_id] = held
        self.backlog.took(held)
        reason = self.stones.cancelled(held.task_id)
        if reason is not None:
            held.phase = Phase.SETTLING
            return reason
        not_before_s = held.headers.not_before_ms / 1000
        self.backlog.push(held, now_s, not_before_s if not_before_s > now_s else None)
        return None

    def let_go(self, held: Held, *, ended: bool) -> None:
        """Another record holds the task, or (`ended`) is its end, and is acknowledged.

        The other record may have come here before its acknowledgement did, sent by this worker or swept by
        the bookkeeper: it is not done with the old one, it is the task.
        """
        if self._held.pop(held.task_id, None) is None:
            return
        self.backlog.released(held)
        now_s = self._clock.now_s()
        self._ended.add(held.task_id if ended else _parked_key(held), now_s)
        positions, newer = tuple(held.positions), {} if ended else dict(held.newer)
        held.positions.clear()
        held.newer.clear()
        for position in positions:
            successor = newer.get(position.spot)
            if successor is None:
                self._done(position)
            else:
                self.again(successor, position)

    def lent(self, held: Held) -> None:
        """A parked row names this worker as holder: the lane records are done, the task runs on."""
        held.lent = True
        self._ended.add(_parked_key(held), self._clock.now_s())
        for position in held.positions:
            self._done(position)
        held.positions.clear()

    def drop(self, held: Held) -> None:
        """The task's lane record belongs to somebody else now: forget it, nothing is done."""
        if self._held.pop(held.task_id, None) is not None:
            self.backlog.released(held)

    def cancel(self, task_id: str, attempt: str | None, reason: str) -> Held | None:
        """Ends what runs of it; returns a waiting task that is pruned and must be let go of by the caller."""
        held = self._held.get(task_id)
        if held is None or (attempt is not None and attempt != held.attempt):
            return None
        if held.phase is Phase.TRYING and held.watch is not None:
            cause: Cause = "cancel" if attempt is None else "superseded"
            held.watch.stop(Verdict(cause, FailureKind.CANCELLED, reason))
            return None
        if attempt is None and held.phase is Phase.QUEUED:
            self.backlog.remove(held)  # it is not there between a revoke and the assignment that follows
            held.phase = Phase.SETTLING
            return held
        return None


def _parked_key(held: Held) -> str:
    """A parked task may come back on another offset within minutes, and a log that began anew has other tasks
    on the old ones: only this very record is done."""
    partition, offset = held.origin
    return f"{held.task_id}@{held.lane}/{partition}/{offset}"
