"""Slots of a shared device: what is granted, to whom, when; and that no order of things grants too many."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.fleet_messages import FleetMessage, SlotClaim, WorkerBeat
from services.core.device_slots import DeviceSlots, Grant, shared_devices
from services.core.fleet import Device, Fleet, Pool
from services.core.max_min import max_min_shares

SLOTS, EXPIRES_S = 4, 10.0
RESERVED = {"heavy": 1, "light": 1}


@dataclass(frozen=True)
class Line:
    key: str
    message: FleetMessage | None
    offset: int
    timestamp_ms: int


class Log:
    """`fleet` as it is written, one second between records unless told otherwise."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.now_ms = 1_000

    def beat(self, worker: str, in_flight: int = 0) -> None:
        beat = WorkerBeat(
            sent_ms=self.now_ms, worker=worker, pool="any", state="ready", slots=0, in_flight=in_flight
        )
        self._put(beat.key, beat)

    def claim(
        self, worker: str, wants: int, uses: int = 0, pool: str = "", sent_ms: int | None = None
    ) -> None:
        claim = SlotClaim(
            sent_ms=self.now_ms if sent_ms is None else sent_ms,
            worker=worker,
            pool=pool or worker.partition("-")[0],
            device="gpu",
            wants=wants,
            uses=uses,
        )
        self._put(claim.key, claim)

    def leave(self, worker: str) -> None:
        self._put(f"device/gpu/{worker}", None)

    def _put(self, key: str, message: FleetMessage | None) -> None:
        self.lines.append(Line(key, message, len(self.lines), self.now_ms))
        self.now_ms += 10

    def read(self, lines: Sequence[Line] | None = None) -> DeviceSlots:
        slots = new_slots()
        for line in self.lines if lines is None else lines:
            slots.apply(line.key, line.message, line.offset, line.timestamp_ms)
        return slots

    def granted(self, *workers: str) -> list[int | None]:
        slots = self.read()
        grants = [slots.grant(worker) for worker in workers]
        return [None if grant is None else grant.granted for grant in grants]


def new_slots(reserved: Mapping[str, int] = RESERVED, slots: int = SLOTS) -> DeviceSlots:
    return DeviceSlots(Device("gpu", slots), reserved, expires_s=EXPIRES_S)


def test_a_flood_gets_all_but_what_the_others_have_reserved() -> None:
    log = Log()
    log.claim("heavy-1", wants=100)
    assert log.granted("heavy-1") == [3]
    log.claim("light-1", wants=1)
    assert log.granted("heavy-1", "light-1") == [3, 1]


def test_an_idle_worker_holds_its_pools_reserve() -> None:
    log = Log()
    log.claim("light-1", wants=0)
    log.claim("heavy-1", wants=100)
    assert log.granted("light-1", "heavy-1") == [1, 3]


def test_workers_of_one_pool_divide_its_part_and_the_idle_one_gives_way() -> None:
    log = Log()
    log.claim("heavy-1", wants=3)
    log.claim("light-1", wants=0)
    log.claim("light-2", wants=1)
    assert log.granted("light-1", "light-2") == [1, 0]
    assert log.read().grant("light-1") == Grant(granted=1, share=0)
    log.claim("light-1", wants=0, uses=0)
    assert log.granted("light-1", "light-2") == [0, 1]


def test_who_is_above_its_share_starts_nothing_and_what_it_lets_go_of_goes_to_who_waits() -> None:
    log = Log()
    log.claim("heavy-1", wants=100)
    log.claim("light-1", wants=100)
    grant = log.read().grant("heavy-1")
    assert grant is not None
    assert (grant.granted, grant.share, grant.usable) == (3, 2, 2)
    log.claim("heavy-1", wants=100, uses=2)
    assert log.granted("heavy-1", "light-1") == [2, 2]


def test_what_is_free_goes_to_the_oldest_claim() -> None:
    log = Log()
    reserved = {"a": 0, "b": 0, "c": 0}
    for worker, uses in (("a-1", 0), ("b-1", 0), ("c-1", 0), ("a-1", 3)):
        log.claim(worker, wants=4, uses=uses)
    slots = new_slots(reserved)
    for line in log.lines:
        slots.apply(line.key, line.message, line.offset, line.timestamp_ms)
    grants = [slots.grant(worker) for worker in ("a-1", "b-1", "c-1")]
    assert [grant and grant.granted for grant in grants] == [3, 1, 0]


def test_a_claim_that_was_overtaken_changes_nothing() -> None:
    log = Log()
    log.claim("heavy-1", wants=3)
    log.claim("heavy-1", wants=3, uses=3)
    log.claim("heavy-1", wants=0, uses=0, sent_ms=1)
    assert log.granted("heavy-1") == [3]


def test_who_leaves_or_falls_silent_while_the_log_goes_on_frees_its_slots() -> None:
    log = Log()
    log.claim("heavy-1", wants=3, uses=0)
    log.claim("heavy-2", wants=3, uses=0)
    assert log.granted("heavy-1", "heavy-2") == [3, 0]
    for _ in range(int(EXPIRES_S) - 1):
        log.now_ms += 1_000
        log.beat("heavy-2")
    assert log.granted("heavy-1", "heavy-2") == [3, 0]
    log.now_ms += 2_000
    log.beat("heavy-2")
    assert log.granted("heavy-1", "heavy-2") == [None, 3]
    log.leave("heavy-2")
    assert log.granted("heavy-2") == [None]


def test_no_time_passes_while_the_broker_is_away_and_clocks_may_differ() -> None:
    log = Log()
    log.claim("heavy-1", wants=3)
    log.claim("light-1", wants=1)
    log.now_ms += 3_600_000
    log.beat("light-1")
    assert log.granted("heavy-1") == [3]
    for _ in range(30):  # an hour apart, beating once a second each
        log.now_ms += 3_600_000
        log.beat("light-1")
        log.now_ms -= 3_600_000 - 1_000
        log.beat("heavy-1")
    assert log.granted("heavy-1", "light-1") == [3, 1]


def test_who_expired_and_lives_on_gets_nothing_until_the_others_make_room() -> None:
    log = Log()
    log.claim("heavy-1", wants=3)
    log.claim("heavy-2", wants=3)
    for _ in range(12):
        log.now_ms += 1_000
        log.beat("heavy-2")
    log.claim("heavy-1", wants=3, uses=3)
    assert log.granted("heavy-1", "heavy-2") == [0, 3]
    shown = {pool.pool: (pool.granted, pool.wanted) for pool in log.read().pools()}
    assert shown == {"heavy": (3, 6), "light": (0, 0)}


def test_what_somebody_still_runs_is_granted_to_nobody() -> None:
    log = Log()
    log.claim("light-1", wants=0)
    log.claim("heavy-1", wants=1, uses=3)
    log.claim("light-1", wants=4, uses=1)
    assert log.granted("heavy-1", "light-1") == [1, 1]
    log.claim("heavy-1", wants=1, uses=1)
    assert log.granted("heavy-1", "light-1") == [1, 3]


def test_what_a_pool_runs_is_in_its_beats() -> None:
    log = Log()
    log.claim("heavy-1", wants=3)
    log.beat("heavy-1", in_flight=2)
    heavy, light = log.read().pools()
    assert (heavy.pool, heavy.reserved, heavy.granted, heavy.used, heavy.wanted) == ("heavy", 1, 3, 2, 3)
    assert (light.granted, light.used, light.wanted) == (0, 0, 0)


def test_the_devices_of_a_fleet() -> None:
    pools = (Pool("a", "m", device="gpu", device_reserved=2), Pool("b", "m", device="gpu"), Pool("c", "m"))
    (slots,) = shared_devices(Fleet(pools, devices=(Device("gpu", 8),))).values()
    assert [(pool.pool, pool.reserved) for pool in slots.pools()] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("wants", "room", "held", "shares"),
    [
        ({"a": 5, "b": 5}, 4, {}, {"a": 2, "b": 2}),
        ({"a": 1, "b": 9}, 4, {}, {"a": 1, "b": 3}),
        ({"a": 9, "b": 9}, 3, {}, {"a": 2, "b": 1}),
        ({"a": 9, "b": 9}, 3, {"b": 1}, {"a": 1, "b": 2}),
        ({"a": 0, "b": 2}, 9, {}, {"a": 0, "b": 2}),
        ({}, 3, {}, {}),
    ],
)
def test_max_min_shares(
    wants: dict[str, int], room: int, held: dict[str, int], shares: dict[str, int]
) -> None:
    assert max_min_shares(wants, room, held) == shares


@given(st.dictionaries(st.text("abcd", min_size=1, max_size=2), st.integers(0, 9)), st.integers(0, 30))
def test_shares_are_max_min(wants: dict[str, int], room: int) -> None:
    shares = max_min_shares(wants, room, {})
    assert sum(shares.values()) == min(room, sum(wants.values()))
    for one, other in itertools.permutations(wants, 2):
        assert shares[one] <= wants[one]
        if shares[one] < wants[one]:
            assert shares[other] <= shares[one] + 1


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "beat", "leave"]),
        st.sampled_from(["heavy-1", "heavy-2", "light-1", "free-1"]),
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from([0, 0, 100, 2_000]),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_no_log_whatever_it_says_grants_more_than_there_is(
    steps: list[tuple[str, str, int, int, int]],
) -> None:
    log, slots, read = Log(), new_slots(RESERVED | {"free": 0}), 0
    for what, worker, wants, uses, later_ms in steps:
        log.now_ms += later_ms
        if what == "claim":
            log.claim(worker, wants, uses)
        elif what == "beat":
            log.beat(worker, uses)
        else:
            log.leave(worker)
        for line in log.lines[read:]:
            slots.apply(line.key, line.message, line.offset, line.timestamp_ms)
        read = len(log.lines)
        held = {pool.pool: pool.granted for pool in slots.pools()}
        assert sum(max(held[pool], reserved) for pool, reserved in (RESERVED | {"free": 0}).items()) <= SLOTS


@settings(max_examples=200, deadline=None)
@given(_STEPS, st.integers(0, 60))
def test_a_grant_falls_by_nobody_elses_word(steps: list[tuple[str, str, int, int, int]], seed: int) -> None:
    log, slots = Log(), new_slots(RESERVED | {"free": 0})
    workers = ["heavy-1", "heavy-2", "light-1", "free-1"]
    for what, worker, wants, uses, _ in steps:
        before = {name: slots.grant(name) for name in workers}
        if what == "claim":
            log.claim(worker, wants, uses)
        elif what == "beat":
            log.beat(worker, uses)
        else:
            log.leave(worker)
        line = log.lines[-1]
        slots.apply(line.key, line.message, line.offset, line.timestamp_ms)
        for name in workers:
            old, new = before[name], slots.grant(name)
            if name != worker and old is not None:
                assert new is not None
                assert new.granted >= old.granted
