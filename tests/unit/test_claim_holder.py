"""Workers that share a device by claims: no order of sends, reads, starts and ends runs too many."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.fleet_messages import FleetMessage, SlotClaim, WorkerBeat
from services.core.claim_holder import ClaimHolder, ClaimLaw
from services.core.device_slots import DeviceSlots
from services.core.fleet import Device

SLOTS, EXPIRES_S = 5, 10.0
POOLS = {"heavy-1": "heavy", "heavy-2": "heavy", "light-1": "light", "free-1": "free"}
RESERVED = {"heavy": 1, "light": 1, "free": 0}


def fold() -> DeviceSlots:
    return DeviceSlots(Device("gpu", SLOTS), RESERVED, expires_s=EXPIRES_S)


class Member:
    """A worker as its tries and its reading see it. `silent`: nothing that it says arrives."""

    def __init__(self, name: str, falls_after_s: float) -> None:
        self.name = name
        self.holder = ClaimHolder(name, POOLS[name], fold(), ClaimLaw(EXPIRES_S, falls_after_s))
        self.read = self.running = self.wants = 0
        self.on_the_way: list[FleetMessage] = []
        self.beat_s = 0.0
        self.silent = self.blind = False


class Sharing:
    """The log grows by what members send, each reads at its own pace, and time passes for all."""

    def __init__(self, falls_after_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.log: list[tuple[str, FleetMessage | None, int]] = []
        self.members = {name: Member(name, falls_after_s) for name in POOLS}

    def claim(self, name: str) -> SlotClaim | None:
        member = self.members[name]
        claim = member.holder.claim(
            max(member.wants, member.running), member.running, self.now_s, self._now_ms()
        )
        if claim is not None:
            member.on_the_way.append(claim)
        return claim

    def arrive(self, name: str) -> None:
        member = self.members[name]
        if not member.silent:
            for message in member.on_the_way:
                self._append(message)
            member.on_the_way = []

    def read(self, name: str, count: int = 1_000) -> None:
        member = self.members[name]
        if member.blind:
            return
        for offset in range(member.read, min(member.read + count, len(self.log))):
            key, message, timestamp_ms = self.log[offset]
            member.holder.heard(key, message, offset, timestamp_ms, self.now_s, self._now_ms())
            member.read = offset + 1

    def start(self, name: str) -> None:
        member = self.members[name]
        member.running = max(member.running, min(member.wants, self.usable(name)))

    def end_one(self, name: str) -> None:
        member = self.members[name]
        member.running = max(0, member.running - 1)

    def pass_time(self, seconds: float) -> None:
        """Everybody who is heard beats once a second."""
        self.now_s += seconds
        for member in self.members.values():
            if self.now_s - member.beat_s >= 1.0 and not member.silent:
                member.beat_s = self.now_s
                sent_ms = self._now_ms()
                self._append(
                    WorkerBeat(
                        sent_ms=sent_ms, worker=member.name, pool="p", state="ready", slots=0, in_flight=0
                    )
                )

    def settle(self, *names: str, rounds: int = 6) -> None:
        """All say and read all there is."""
        for _ in range(rounds):
            for name in names or POOLS:
                self.claim(name)
                self.arrive(name)
            for name in names or POOLS:
                self.read(name)
            self.pass_time(0.1)

    def usable(self, name: str) -> int:
        return self.members[name].holder.usable(self.now_s)

    def running(self) -> int:
        return sum(member.running for member in self.members.values())

    def views(self) -> list[list[object]]:
        """What those see who have read all of it."""
        ends = [member for member in self.members.values() if member.read == len(self.log)]
        return [[member.holder.slots.grant(name) for name in POOLS] for member in ends]

    def step(self, choose: random.Random) -> None:
        name = choose.choice(sorted(POOLS))
        what = choose.choice(["want", "claim", "claim", "arrive", "arrive", "read", "read", "start", "start"])
        if choose.random() < 0.15:
            self.end_one(name)
        elif choose.random() < 0.1:
            self.pass_time(choose.choice([0.05, 1.0]))
        elif what == "want":
            self.members[name].wants = choose.randint(0, 7)
        elif what == "claim":
            self.claim(name)
        elif what == "arrive":
            self.arrive(name)
        elif what == "read":
            self.read(name, choose.randint(1, 6))
        else:
            self.start(name)

    def _append(self, message: FleetMessage) -> None:
        self.log.append((message.key, message, self._now_ms()))

    def _now_ms(self) -> int:
        return int(self.now_s * 1000)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_no_order_of_things_runs_more_than_the_device_has(seed: int) -> None:
    choose, sharing = random.Random(seed), Sharing()
    for _ in range(300):
        sharing.step(choose)
        assert sharing.running() <= SLOTS
        each = [max(member.running, sharing.usable(name)) for name, member in sharing.members.items()]
        assert sum(each) <= SLOTS
        views = sharing.views()
        assert all(view == views[0] for view in views)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_whoever_falls_silent_or_blind_starts_nothing_that_others_may(seed: int) -> None:
    choose, sharing = random.Random(seed), Sharing()
    for _ in range(600):
        sharing.step(choose)
        if choose.random() < 0.02:
            member = sharing.members[choose.choice(sorted(POOLS))]
            member.silent, member.blind = choose.random() < 0.5, choose.random() < 0.5
        if choose.random() < 0.05:
            sharing.pass_time(1.0)
        assert sum(sharing.usable(name) for name in POOLS) <= SLOTS


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_once_all_was_said_and_read_everybody_has_its_share_and_nothing_is_lost(seed: int) -> None:
    choose, sharing = random.Random(seed), Sharing()
    for _ in range(200):
        sharing.step(choose)
    for member in sharing.members.values():
        member.running = 0
        member.wants = 7
    sharing.settle(rounds=8)
    assert sum(sharing.usable(name) for name in POOLS) == SLOTS
    assert all(sharing.claim(name) is None for name in POOLS)  # nobody has anything to add


def test_nothing_is_used_before_the_own_claim_was_read() -> None:
    sharing = Sharing()
    sharing.members["heavy-1"].wants = 4
    sharing.claim("heavy-1")
    sharing.pass_time(1.0)
    sharing.read("heavy-1")
    assert sharing.usable("heavy-1") == 0
    sharing.arrive("heavy-1")
    assert sharing.usable("heavy-1") == 0
    sharing.read("heavy-1")
    assert sharing.usable("heavy-1") == SLOTS - RESERVED["light"]


def test_a_light_models_next_request_needs_no_negotiation() -> None:
    sharing = Sharing()
    sharing.members["heavy-1"].wants = 100
    sharing.settle("heavy-1", "light-1")
    sharing.start("heavy-1")
    assert sharing.members["heavy-1"].running == SLOTS - 1
    assert sharing.usable("light-1") == 1


def test_a_borrower_gives_back_as_its_tries_end_and_starts_none_meanwhile() -> None:
    sharing = Sharing()
    sharing.members["heavy-1"].wants = 100
    sharing.settle("heavy-1", "light-1")
    sharing.start("heavy-1")
    sharing.members["light-1"].wants = 100
    for running in (4, 3):
        sharing.settle("heavy-1", "light-1")
        assert sharing.usable("heavy-1") == 3
        sharing.start("heavy-1")
        assert sharing.members["heavy-1"].running == running
        assert sharing.usable("light-1") == SLOTS - running
        sharing.end_one("heavy-1")


def test_a_worker_that_is_not_heard_or_cannot_hear_starts_nothing_before_the_others_may() -> None:
    for silent, blind in ((True, False), (False, True), (True, True)):
        sharing = Sharing()
        sharing.members["heavy-1"].wants = sharing.members["heavy-2"].wants = 4
        sharing.settle("heavy-1", "heavy-2")
        lost = sharing.members["heavy-1"]
        lost.silent, lost.blind = silent, blind
        for _ in range(int(EXPIRES_S * 10)):
            sharing.pass_time(0.2)
            sharing.read("heavy-1")
            sharing.settle("heavy-2", rounds=1)
            assert sharing.usable("heavy-1") + sharing.usable("heavy-2") <= SLOTS - 1
        assert sharing.usable("heavy-1") == 0
        assert sharing.usable("heavy-2") == (4 if silent else 2)
        lost.silent = lost.blind = False
        lost.running = 2
        sharing.read("heavy-1")
        sharing.settle("heavy-1", "heavy-2")
        assert sharing.usable("heavy-1") == 2


def test_what_is_wanted_less_for_a_moment_changes_nothing() -> None:
    sharing = Sharing(falls_after_s=2.0)
    member = sharing.members["heavy-1"]
    member.wants = 4
    sharing.settle("heavy-1")
    assert sharing.claim("heavy-1") is None
    member.wants = 0
    for _ in range(15):
        sharing.pass_time(0.1)
        sharing.read("heavy-1")
        assert sharing.claim("heavy-1") is None
    member.wants = 4
    assert sharing.claim("heavy-1") is None
    member.wants = 0
    sharing.claim("heavy-1")
    sharing.pass_time(2.0)
    sharing.read("heavy-1")
    claim = sharing.claim("heavy-1")
    assert claim is not None
    assert (claim.wants, claim.uses) == (0, 1)


def test_a_claim_that_is_not_read_back_is_sent_again_and_binds_all_the_same() -> None:
    sharing = Sharing()
    member = sharing.members["heavy-1"]
    member.wants = 4
    sharing.settle("heavy-1")
    assert sharing.usable("heavy-1") == 4
    member.wants = 2
    assert sharing.claim("heavy-1") is not None
    member.on_the_way.clear()
    member.wants = 4
    for _ in range(30):
        sharing.pass_time(0.1)
        sharing.read("heavy-1")
        assert sharing.usable("heavy-1") == 2
        sharing.claim("heavy-1")
    sent = len(member.on_the_way)
    assert 1 < sent < 5
    sharing.settle("heavy-1")
    assert sharing.usable("heavy-1") == 4
