"""The breaker and back-pressure of one backend (CASES R2, R3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from schemas.failures import FAILURE_FACTS, FailureKind
from services.core.back_pressure import FIRST_HOLD_S, LONGEST_GUESS_S, LONGEST_TOLD_S, BackPressure
from services.core.breaker import TABLE, Breaker, BreakerError, Outcome, Pass, State, outcome_of
from services.core.fleet import BreakerLaw

LAW = BreakerLaw(window_s=10, min_calls=4, failure_rate=0.5, cooldown_s=1, cooldown_most_s=8)
FAULTS: list[Outcome] = ["fault"] * LAW.min_calls
NEVER = [FailureKind.BAD_REQUEST, FailureKind.TOO_LONG, FailureKind.RATE_LIMITED, FailureKind.OVERLOADED]
NEVER += [FailureKind.CANCELLED, FailureKind.EVICTED, FailureKind.DEADLINE, FailureKind.INTERNAL]


def tried(breaker: Breaker, now_s: float, *outcomes: Outcome) -> None:
    for outcome in outcomes:
        breaker.end(breaker.begin(now_s), outcome, now_s)


def opened() -> Breaker:
    breaker = Breaker(LAW)
    tried(breaker, 0.0, *FAULTS)
    assert state_of(breaker) == "open"
    return breaker


def state_of(breaker: Breaker) -> State:
    return breaker.state


@pytest.mark.parametrize("kind", NEVER)
def test_r3_what_is_not_the_backends_fault_never_opens_it(kind: FailureKind) -> None:
    breaker = Breaker(LAW)
    for heard in (False, True):
        tried(breaker, 0.0, *[outcome_of(kind, heard=heard)] * 100)
    assert state_of(breaker) == "closed"


@pytest.mark.parametrize("kind", [k for k, facts in FAILURE_FACTS.items() if facts.counts_against_backend])
def test_r3_every_fault_of_the_backend_opens_it_streams_too(kind: FailureKind) -> None:
    breaker = Breaker(LAW)
    for heard in (False, True, False, True):
        tried(breaker, 0.0, outcome_of(kind, heard=heard))
    assert state_of(breaker) == "open"


def test_too_few_calls_or_too_few_faults_or_too_long_ago_do_not_open_it() -> None:
    few = Breaker(LAW)
    tried(few, 0.0, "fault", "fault", "fault")
    mostly_good = Breaker(LAW)
    tried(mostly_good, 0.0, "good", "good", "good", "good", "fault", "fault", "fault")
    spread = Breaker(LAW)
    for at in range(12):
        tried(spread, at * LAW.window_s / 2.5, "fault")
    assert [each.state for each in (few, mostly_good, spread)] == ["closed"] * 3


def test_one_probe_at_a_time_and_its_success_closes() -> None:
    breaker = opened()
    with pytest.raises(BreakerError, match="open for another"):
        breaker.begin(0.5)
    probe = breaker.begin(1.0)
    assert probe.probe
    assert state_of(breaker) == "half_open"
    assert breaker.callable_at_s() is None
    with pytest.raises(BreakerError):
        breaker.begin(100.0)
    breaker.end(probe, "good", 1.5)
    assert state_of(breaker) == "closed"
    breaker.end(probe, "fault", 1.5)  # given back twice: the second changes nothing
    assert state_of(breaker) == "closed"


def test_a_cancelled_probe_frees_its_place_at_once_one_that_waited_in_vain_after_the_same_time() -> None:
    breaker = opened()
    breaker.end(breaker.begin(1.0), "nothing", 1.2)
    assert breaker.callable_at_s() == 1.2
    breaker.end(breaker.begin(1.2), "unproven", 3.0)
    assert breaker.callable_at_s() == 4.0
    assert breaker.cooldown_s == LAW.cooldown_s


def test_cooldowns_double_up_to_the_most_and_start_again_after_a_quiet_window() -> None:
    breaker, now_s, seen = opened(), 0.0, []
    for _ in range(5):
        now_s = breaker.callable_at_s() or 0.0
        breaker.end(breaker.begin(now_s), "fault", now_s)
        seen.append(breaker.cooldown_s)
    assert seen == [2, 4, 8, 8, 8]
    now_s = breaker.callable_at_s() or 0.0
    tried(breaker, now_s, "good", *FAULTS)  # it flaps: no new beginning
    assert breaker.cooldown_s == 8
    now_s = breaker.callable_at_s() or 0.0
    tried(breaker, now_s, "good")
    tried(breaker, now_s + LAW.window_s, *FAULTS)
    assert breaker.cooldown_s == 1


def test_what_began_before_it_opened_neither_closes_it_nor_keeps_it_open() -> None:
    breaker = Breaker(LAW)
    old = breaker.begin(0.0)
    tried(breaker, 0.0, *FAULTS)
    breaker.end(old, "good", 0.1)
    assert state_of(breaker) == "open"
    probe = breaker.begin(1.0)
    breaker.end(old, "fault", 1.1)
    assert state_of(breaker) == "half_open"
    breaker.end(probe, "good", 1.2)
    assert state_of(breaker) == "closed"


def test_the_table_has_a_way_out_of_every_state_and_none_from_closed_to_half_open() -> None:
    assert {state for state, _ in TABLE} == {"closed", "open", "half_open"} == set(TABLE.values())
    assert [event for (state, event), _ in TABLE.items() if state == "closed"] == ["tripped"]


class AnyOrder(RuleBasedStateMachine):
    """Tries that begin, end and are cancelled in any order, with the clock going on."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(LAW)
        self.now_s = 0.0
        self.out: list[Pass] = []

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def begins(self) -> None:
        at_s = self.breaker.callable_at_s()
        if at_s is None or at_s > self.now_s:
            with pytest.raises(BreakerError):
                self.breaker.begin(self.now_s)
        else:
            self.out.append(self.breaker.begin(self.now_s))

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(["good", "fault", "unproven", "nothing"]))
    def ends(self, data: st.DataObject, outcome: Outcome) -> None:
        passed = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        before, cooldown_s = self.breaker.state, self.breaker.cooldown_s
        self.breaker.end(passed, outcome, self.now_s)
        after = self.breaker.state
        if after != before:
            assert (before, after) in {(state, to) for (state, _), to in TABLE.items()}
        if before != "closed" and after != "closed":
            assert self.breaker.cooldown_s >= cooldown_s  # it only grows while it fails
        if outcome == "nothing" and before == "closed":
            assert after == "closed"

    @invariant()
    def one_probe_exactly_while_half_open(self) -> None:
        probes = [passed for passed in self.out if passed.probe]
        assert len(probes) == (self.breaker.state == "half_open")

    @invariant()
    def it_always_comes_back(self) -> None:
        if self.breaker.state == "open":
            at_s = self.breaker.callable_at_s()
            assert at_s is not None
            assert at_s <= self.now_s + LAW.cooldown_most_s


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.tuples(st.floats(0, 5), st.none() | st.floats(-5, 1e7), st.booleans()), max_size=30))
def test_r2_a_hold_only_grows_while_it_lasts(said: list[tuple[float, float | None, bool]]) -> None:
    pressure, now_s = BackPressure(), 1.0
    for passed_s, retry_after_s, fresh in said:
        now_s += passed_s
        before_s = pressure.until_s
        pressure.refused(now_s if fresh else 0.0, now_s, retry_after_s)
        assert pressure.until_s >= before_s
        assert pressure.until_s <= max(before_s, now_s + LONGEST_TOLD_S)
        if retry_after_s is not None:
            assert pressure.until_s >= min(now_s + retry_after_s, now_s + LONGEST_TOLD_S) - 1e-6


def test_r2_without_a_time_the_hold_doubles_by_episodes_and_an_answer_ends_that() -> None:
    pressure, now_s, holds = BackPressure(), 1.0, []
    for _ in range(8):
        for _ in range(5):  # the same refusal by all that were under way
            pressure.refused(now_s, now_s, None)
        holds.append(pressure.until_s - now_s)
        now_s = pressure.until_s
    assert holds == [0.25, 0.5, 1, 2, 4, 8, 8, LONGEST_GUESS_S]
    pressure.answered()
    pressure.refused(now_s, now_s, None)
    assert pressure.until_s - now_s == FIRST_HOLD_S
