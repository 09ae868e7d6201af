"""Slots of a device that several pools share: the claims on `fleet`, folded in the order of the log. Pure.

Laws, at every reader and at every offset:
- What is granted is never more than the device has, and each pool's reserved slots are granted to its own
  workers alone: no other pool can have taken them when its next request comes.
- A grant grows by any record that leaves something free, and falls only by a record of its own worker, or by
  its expiry. So a worker that was granted n may run n, however far others have read meanwhile.
- A worker's claim says what it holds on to (`uses`): it is granted no more than that until the claim is read,
  and then what is free, up to its share. What is free goes to those below their share, oldest claim first.
- Shares are max-min fair: a pool's reserve, then the rest in equal parts among the pools that want more, and
  within a pool in equal parts among its workers. A worker above its share starts nothing; its slots go over
  as its tries end, so at the latest after the longest try (`total_s`).
- A worker that was silent while the log went on for `expires_ms` holds nothing any more.

The log goes on by the time between two records of one author, on that author's clock, and at most by a fourth
of the expiry: clocks that differ do not matter, and no time passes while the broker is away. A reader that
starts on a compacted log sees fewer records: to it less time has passed, so it expires later, not sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.fleet_messages import FleetMessage, SlotClaim, WorkerBeat
from services.core.fleet import Device, Fleet
from services.core.max_min import max_min_shares

EXPIRES_S = 10.0
_STEPS = 4
_FORGOTTEN_AFTER = 10  # expiries without a word, and an author's clock is forgotten


@dataclass(frozen=True, slots=True)
class Grant:
    """granted: what a worker may hold; share: what it should, as others wait. `usable` is the lesser."""

    granted: int
    share: int

    @property
    def usable(self) -> int:
        return min(self.granted, self.share)


@dataclass(frozen=True, slots=True)
class PoolSlots:
    """What a pool has of the device: granted, running, and wanted by its workers; `reserved` is its own."""

    pool: str
    reserved: int
    granted: int
    used: int
    wanted: int


@dataclass(slots=True)
class _Claim:
    pool: str
    wants: int
    uses: int
    granted: int
    share: int
    offset: int
    sent_ms: int
    heard_ms: int
    running: int

    @property
    def counted(self) -> int:
        """What it may have running: more than it was granted where it had expired and lived on."""
        return max(self.granted, self.uses)


class _LogClock:
    """Milliseconds for which the log went on, by the authors' own clocks; never faster than true time."""

    def __init__(self, longest_step_ms: int, forgotten_ms: int) -> None:
        self._longest_step_ms, self._forgotten_ms = longest_step_ms, forgotten_ms
        self._authors: dict[str, tuple[int, int]] = {}  # the author's newest timestamp, the log's time then
        self.now_ms = 0

    def tick(self, author: str, timestamp_ms: int) -> None:
        known = self._authors.get(author)
        if known is not None:
            step_ms = min(max(0, timestamp_ms - known[0]), self._longest_step_ms)
            self.now_ms = max(self.now_ms, known[1] + step_ms)
            timestamp_ms = max(timestamp_ms, known[0])
        self._authors[author] = timestamp_ms, self.now_ms
        if len(self._authors) > 64:
            limit_ms = self.now_ms - self._forgotten_ms
            self._authors = {name: at for name, at in self._authors.items() if at[1] >= limit_ms}


class DeviceSlots:
    """One device. `reserved` by pool; feed `apply` with every record of `fleet`."""

    def __init__(self, device: Device, reserved: Mapping[str, int], *, expires_s: float = EXPIRES_S) -> None:
        self.device = device
        self._reserved = dict(reserved)
        self._expires_ms = int(expires_s * 1000)
        self._clock = _LogClock(self._expires_ms // _STEPS, self._expires_ms * _FORGOTTEN_AFTER)
        self._claims: dict[str, _Claim] = {}

    def apply(self, key: str, message: FleetMessage | None, offset: int, timestamp_ms: int) -> None:
        """A record was read; None takes its key out. Whatever is not of this device only lets time pass."""
        changed = False
        claim = None
        if isinstance(message, WorkerBeat | SlotClaim):
            self._clock.tick(message.worker, timestamp_ms)
            changed = self._expire()
            if (claim := self._claims.get(message.worker)) is not None:
                claim.heard_ms = self._clock.now_ms
        if isinstance(message, WorkerBeat):
            if claim is not None:
                claim.running = message.in_flight
        elif isinstance(message, SlotClaim):
            changed |= self._claim(message, offset)
        elif message is None:
            changed = self._claims.pop(key.removeprefix(f"device/{self.device.name}/"), None) is not None
        if changed:
            self._settle()

    def grant(self, worker: str) -> Grant | None:
        """None for who claims nothing, or has expired."""
        claim = self._claims.get(worker)
        return None if claim is None else Grant(claim.granted, claim.share)

    def reserved(self, pool: str) -> int:
        return self._reserved.get(pool, 0)

    def pools(self) -> tuple[PoolSlots, ...]:
        """All pools that name the device, by name."""
        return tuple(
            PoolSlots(
                pool,
                self._reserved[pool],
                sum(claim.granted for claim in self._of(pool)),
                sum(claim.running for claim in self._of(pool)),
                sum(claim.wants for claim in self._of(pool)),
            )
            for pool in sorted(self._reserved)
        )

    def _of(self, pool: str) -> Iterable[_Claim]:
        return (claim for claim in self._claims.values() if claim.pool == pool)

    def _claim(self, message: SlotClaim, offset: int) -> bool:
        if message.device != self.device.name or message.pool not in self._reserved:
            return False
        old = self._claims.get(message.worker)
        if old is not None and message.sent_ms <= old.sent_ms:
            return False  # overtaken on its way: its worker has committed itself to something else
        self._claims[message.worker] = _Claim(
            pool=message.pool,
            wants=message.wants,
            uses=message.uses,
            granted=0 if old is None else min(old.granted, message.uses),
            share=0,
            offset=offset,
            sent_ms=message.sent_ms,
            heard_ms=self._clock.now_ms,
            running=message.uses if old is None else old.running,
        )
        return True

    def _expire(self) -> bool:
        dead_ms = self._clock.now_ms - self._expires_ms
        dead = [name for name, claim in self._claims.items() if claim.heard_ms < dead_ms]
        for name in dead:
            del self._claims[name]
        return bool(dead)

    def _settle(self) -> None:
        """Shares anew, and what is free to those below theirs, oldest claim first."""
        self._share_out()
        for claim in sorted(self._claims.values(), key=lambda claim: claim.offset):
            while claim.granted < claim.share and self._may_have_one_more(claim):
                claim.granted += 1

    def _may_have_one_more(self, claim: _Claim) -> bool:
        granted = {pool: sum(each.granted for each in self._of(pool)) for pool in self._reserved}
        if self._free(granted, claim.pool) < 1:
            return False
        if granted[claim.pool] < self._reserved[claim.pool] or claim.granted < claim.uses:
            return True  # its own, or in use by it already
        counted = {pool: sum(each.counted for each in self._of(pool)) for pool in self._reserved}
        return self._free(counted, claim.pool) > 0

    def _free(self, held: Mapping[str, int], pool: str) -> int:
        """What `pool` may have more: its own reserve is kept for it, the others' for them."""
        others = sum(max(held[other], self._reserved[other]) for other in held if other != pool)
        return self.device.slots - others - held[pool]

    def _share_out(self) -> None:
        beyond, held = {}, {}
        for pool, reserved in self._reserved.items():
            beyond[pool] = max(0, sum(claim.wants for claim in self._of(pool)) - reserved)
            held[pool] = max(0, sum(claim.granted for claim in self._of(pool)) - reserved)
        common = max_min_shares(beyond, self.device.slots - sum(self._reserved.values()), held)
        for pool, reserved in self._reserved.items():
            mine = {name: claim for name, claim in self._claims.items() if claim.pool == pool}
            wants = {name: claim.wants for name, claim in mine.items()}
            granted = {name: claim.granted for name, claim in mine.items()}
            shares = max_min_shares(wants, reserved + common[pool], granted)
            idle = reserved - sum(shares.values())  # nobody asks for it: it stands ready for who asks next
            ready = max_min_shares(dict.fromkeys(mine, max(0, idle)), max(0, idle), granted)
            for name, claim in mine.items():
                claim.share = shares[name] + ready[name]


def shared_devices(fleet: Fleet, *, expires_s: float = EXPIRES_S) -> dict[str, DeviceSlots]:
    """The devices of a fleet file by name."""
    return {
        device.name: DeviceSlots(
            device,
            {pool.name: pool.device_reserved for pool in fleet.pools if pool.device == device.name},
            expires_s=expires_s,
        )
        for device in fleet.devices
    }
