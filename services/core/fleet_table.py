"""The fleet as its heartbeats show it: who works in which pool, who owns which lane partition, who is dead.

Pure. Times are seconds on the reader's clock: a beat counts from when it was read, so that clocks of other
machines matter to nobody; a reader that could not read for a while says so by `paused`: nobody dies of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.fleet_messages import FleetMessage, PoolMode, PoolOrder, WorkerBeat
from services.core.fleet import Fleet, Pool

DEAD_AFTER_S = 3.0
ADOPT_AFTER_S = 30.0
BURY_AFTER_S = 600.0  # then whoever keeps the books takes a dead worker out of the topic
FORGET_AFTER_S = 900.0
STALL_SLACK_S = 5.0


def stall_bounds(fleet: Fleet) -> Mapping[str, float]:
    """For `stalled_after_s`: how long a healthy worker of each pool may be without a token."""
    return {pool.name: _longest_silence_s(pool) + STALL_SLACK_S for pool in fleet.pools}


def _longest_silence_s(pool: Pool) -> float:
    """Its guards end a try that is silent for longer; the slack is for them to be seen to do it."""
    limits = pool.timeouts
    whole = not pool.streaming or "embeddings" in pool.features or "embed" in pool.capabilities
    if whole or pool.backend in ("http", "mcp"):
        return limits.total_s
    return max(limits.first_token_s, limits.idle_s)


@dataclass(frozen=True, slots=True)
class Member:
    """A worker as its newest beat shows it; `heard_s`: when that was read."""

    beat: WorkerBeat
    heard_s: float


class FleetTable:
    """Fed with the records of `fleet` in log order. `stalled_after_s`: no progress for so long is death."""

    def __init__(
        self, *, dead_after_s: float = DEAD_AFTER_S, stalled_after_s: Mapping[str, float] | None = None
    ) -> None:
        self._dead_after_s = dead_after_s
        self._stalled_after_s = dict(stalled_after_s or {})
        self._members: dict[str, Member] = {}
        self._orders: dict[str, PoolOrder] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._last_ready_s: dict[str, float] = {}

    def apply(self, key: str, message: FleetMessage | None, now_s: float) -> None:
        """A record was read; None takes its key out."""
        kind, _, name = key.partition("/")
        if kind == "worker":
            self._beat(name, message if isinstance(message, WorkerBeat) else None, now_s)
        elif kind == "pool":
            if isinstance(message, PoolOrder):
                self._orders[name] = message
            elif message is None:
                self._orders.pop(name, None)

    def paused(self, seconds: float) -> None:
        """Nothing could be read for so long: that is no silence of the workers."""
        self._members = {
            name: Member(member.beat, member.heard_s + seconds) for name, member in self._members.items()
        }
        self._last_ready_s = {pool: at_s + seconds for pool, at_s in self._last_ready_s.items()}

    def resumed(self, now_s: float, grace_s: float) -> None:
        """Reading goes on: who lived has `grace_s` more to be heard, for it may have to connect again.

        The graces of several pauses do not add up: a dead worker would live for as long as they did.
        """
        self._members = {
            name: Member(member.beat, max(member.heard_s, now_s + grace_s))
            if now_s - member.heard_s < self._dead_after_s
            else member
            for name, member in self._members.items()
        }

    def forget(self, now_s: float, after_s: float = FORGET_AFTER_S) -> None:
        """Drops who was silent for so long."""
        for name, member in tuple(self._members.items()):
            if now_s - member.heard_s >= after_s:
                self._remove(name)

    def members(self) -> Iterable[Member]:
        """All that ever beat and did not leave, dead ones too, until they are forgotten."""
        return tuple(self._members.values())

    def member(self, worker: str) -> Member | None:
        return self._members.get(worker)

    def is_dead(self, worker: str, now_s: float) -> bool:
        """Heard of once, and then silent or without progress for too long. False for whom nobody heard of."""
        member = self._members.get(worker)
        return member is not None and not self._alive(member, now_s)

    def dead(self, now_s: float) -> list[Member]:
        """All that `is_dead` holds for."""
        return [member for member in self._members.values() if not self._alive(member, now_s)]

    def alive(self, pool: str, now_s: float) -> list[WorkerBeat]:
        """Workers of a pool that are not dead, whatever their state."""
        return [
            member.beat
            for member in self._members.values()
            if member.beat.pool == pool and self._alive(member, now_s)
        ]

    def ready(self, pool: str, now_s: float) -> list[WorkerBeat]:
        """Those that take work now."""
        return [beat for beat in self.alive(pool, now_s) if beat.state == "ready"]

    def owner(self, lane: str, partition: int, now_s: float) -> WorkerBeat | None:
        """Who owns a lane's partition and is alive."""
        member = self._members.get(self._owners.get((lane, partition), ""))
        if member is None or not self._alive(member, now_s):
            return None
        return member.beat if partition in member.beat.owns.get(lane, ()) else None

    def census(self, now_s: float) -> Counter[tuple[str, str]]:
        """How many workers each pool has in each state, `dead` among them."""
        return Counter(
            (member.beat.pool, member.beat.state if self._alive(member, now_s) else "dead")
            for member in self._members.values()
        )

    def silent_s(self, pool: str, now_s: float) -> float | None:
        """Seconds since a worker of the pool last beat `ready` or `loading`; None where none ever did."""
        last_s = self._last_ready_s.get(pool)
        return None if last_s is None else max(0.0, now_s - last_s)

    def mode(self, pool: str) -> PoolMode:
        """What an operator wants of the pool."""
        order = self._orders.get(pool)
        return "running" if order is None else order.mode

    def order(self, pool: str) -> PoolOrder | None:
        return self._orders.get(pool)

    def _beat(self, worker: str, beat: WorkerBeat | None, now_s: float) -> None:
        self._remove(worker)
        if beat is None:
            return
        self._members[worker] = Member(beat, now_s)
        if beat.state != "draining":
            self._last_ready_s[beat.pool] = max(now_s, self._last_ready_s.get(beat.pool, now_s))
        for lane, partitions in beat.owns.items():
            for partition in partitions:
                self._owners[lane, partition] = worker

    def _remove(self, worker: str) -> None:
        old = self._members.pop(worker, None)
        if old is None:
            return
        for lane, partitions in old.beat.owns.items():
            for partition in partitions:
                if self._owners.get((lane, partition)) == worker:
                    del self._owners[lane, partition]

    def _alive(self, member: Member, now_s: float) -> bool:
        silent_s = now_s - member.heard_s
        stalled_after_s = self._stalled_after_s.get(member.beat.pool, float("inf"))
        return silent_s < self._dead_after_s and member.beat.quiet_s + silent_s < stalled_after_s
