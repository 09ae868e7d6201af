"""What one worker may use of a shared device, and what it claims: its side of `device_slots`. Pure.

Laws:
- It uses no more than was granted at the offset up to which it has read, no more than its share, and no more
  than it said to hold on to in claims that it has not read back: others may be granted the rest already.
- Its lease counts from when it sent the newest record of its own that it has read back (Gray and Cheriton,
  1989), so it ends before others see it expired. Without a lease it starts nothing, not even in its pool's
  reserve: a worker of the same pool may have been granted that meanwhile. Who cannot read `fleet` gets no
  work from the same broker either, so zero costs little.
- Claims rise at once and fall only after `falls_after_s`: what is wanted moves up and down with every task.

Times: `now_s` is steady, `now_ms` the worker's own wall clock, as `sent_ms` of its records.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.fleet_messages import FleetMessage, SlotClaim, WorkerBeat
from services.core.device_slots import DeviceSlots

_RENEW_AT = 0.5  # of the expiry: a lease shorter than that, for want of beats, has the claim sent again
_AGAIN_AT = 0.2  # of the expiry: a claim not read back by then is sent again
_MOST_UNREAD = 8
_MARGIN = 0.9  # of the expiry: clocks do not all run equally fast


@dataclass(frozen=True, slots=True)
class ClaimLaw:
    """`expires_s` as that of the device's fold, at every worker of the fleet."""

    expires_s: float = 10.0
    falls_after_s: float = 2.0


class _Wish:
    """What is wanted, with falls held back."""

    def __init__(self, falls_after_s: float) -> None:
        self._falls_after_s = falls_after_s
        self._low_since_s: float | None = None
        self.value = 0

    def update(self, wants: int, now_s: float) -> int:
        if wants >= self.value:
            self._low_since_s, self.value = None, wants
            return wants
        if self._low_since_s is None:
            self._low_since_s = now_s
        if now_s - self._low_since_s >= self._falls_after_s:
            self._low_since_s, self.value = None, wants
        return self.value


class ClaimHolder:
    """`slots` is this worker's own fold of the device; nobody else feeds it."""

    def __init__(self, worker: str, pool: str, slots: DeviceSlots, law: ClaimLaw) -> None:
        self._worker, self._pool = worker, pool
        self.slots = slots
        self._law = law
        self._wish = _Wish(law.falls_after_s)
        self._lease_until_s = float("-inf")
        self._unread: list[tuple[int, int]] = []  # claims not read back: when sent, and what they hold on to
        self._newest: SlotClaim | None = None
        self._sent_s = float("-inf")

    def heard(
        self,
        key: str,
        message: FleetMessage | None,
        offset: int,
        timestamp_ms: int,
        now_s: float,
        now_ms: int,
    ) -> None:
        """A record of `fleet` was read."""
        self.slots.apply(key, message, offset, timestamp_ms)
        if not isinstance(message, WorkerBeat | SlotClaim) or message.worker != self._worker:
            return
        age_s = max(0, now_ms - message.sent_ms) / 1000
        self._lease_until_s = max(self._lease_until_s, now_s - age_s + _MARGIN * self._law.expires_s)
        if isinstance(message, SlotClaim):
            self._unread = [claim for claim in self._unread if claim[0] > message.sent_ms]

    def usable(self, now_s: float) -> int:
        """How many tries may run; nothing starts above it, what runs already may end."""
        grant = self.slots.grant(self._worker)
        if grant is None or self._newest is None or now_s >= self._lease_until_s:
            return 0
        return self._within_unread(grant.usable)

    def claim(self, wants: int, running: int, now_s: float, now_ms: int) -> SlotClaim | None:
        """The claim to send now, which it counts as sent; None where the last one still says it all."""
        wants = self._wish.update(wants, now_s)
        grant, uses = self.slots.grant(self._worker), running
        if grant is not None:
            keeps = min(grant.usable, max(wants, self.slots.reserved(self._pool)))
            uses = max(running, self._within_unread(keeps))
        newest = self._newest
        if newest is not None and (newest.wants, newest.uses) == (wants, uses):
            on_its_way = self._is_unread(newest) and now_s - self._sent_s < _AGAIN_AT * self._law.expires_s
            stands = grant is not None and grant.granted <= uses and self._lease_is_long(now_s)
            if on_its_way or stands:
                return None
        return self._sent(wants, uses, now_s, now_ms)

    def _sent(self, wants: int, uses: int, now_s: float, now_ms: int) -> SlotClaim:
        last_ms = 0 if self._newest is None else self._newest.sent_ms
        claim = self._newest = SlotClaim.model_construct(
            sent_ms=max(now_ms, last_ms + 1),
            worker=self._worker,
            pool=self._pool,
            device=self.slots.device.name,
            wants=wants,
            uses=uses,
        )
        self._sent_s = now_s
        if len(self._unread) >= _MOST_UNREAD:  # as one, until the newest of them is read
            self._unread = [(last_ms, min(held for _, held in self._unread))]
        self._unread.append((claim.sent_ms, uses))
        return claim

    def _within_unread(self, slots: int) -> int:
        return min([slots, *(held for _, held in self._unread)])

    def _is_unread(self, claim: SlotClaim) -> bool:
        return any(sent_ms == claim.sent_ms for sent_ms, _ in self._unread)

    def _lease_is_long(self, now_s: float) -> bool:
        return self._lease_until_s - now_s > _RENEW_AT * self._law.expires_s
