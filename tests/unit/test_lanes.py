"""Weighted priority: every lane its share, no lane starves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.lanes import WAIT_BOUND_S, WEIGHTS, LanePicker


def busy_picker() -> LanePicker:
    picker = LanePicker()
    for lane in picker.lanes:
        picker.arrived(lane, 0.0)
    return picker


def test_waiting_lanes_share_by_weight_in_every_round() -> None:
    picker = busy_picker()
    for _ in range(5):
        assert Counter(picker.pick(0.0) for _ in range(12)) == WEIGHTS


def test_the_share_is_spread_over_the_round() -> None:
    picker = busy_picker()
    order = [picker.pick(0.0) for _ in range(12)]
    assert "standard" in order[:4]
    assert order.index("batch") < 11


def test_idle_lanes_leave_their_share_to_the_others() -> None:
    picker = LanePicker()
    picker.arrived("standard", 0.0)
    picker.arrived("batch", 0.0)
    assert Counter(picker.pick(0.0) for _ in range(8)) == {"standard": 6, "batch": 2}


def test_nothing_waits_nothing_is_picked() -> None:
    picker = LanePicker()
    assert picker.pick(0.0) is None
    picker.arrived("batch", 0.0)
    assert picker.pick(0.0) == "batch"
    picker.emptied("batch")
    assert picker.pick(0.0) is None


def test_an_idle_lane_banks_no_credit() -> None:
    picker = busy_picker()
    for _ in range(5):
        picker.pick(0.0)
    for lane in picker.lanes:
        picker.emptied(lane)
        picker.arrived(lane, 0.0)
    fresh = busy_picker()
    assert [picker.pick(0.0) for _ in range(12)] == [fresh.pick(0.0) for _ in range(12)]


def test_more_work_does_not_make_a_waiting_lane_wait_anew() -> None:
    picker = busy_picker()
    picker.pick(1.0)
    picker.pick(1.0)
    for lane in picker.lanes:
        picker.arrived(lane, 8.0)
    assert picker.pick(8.5) == "batch"


def test_unknown_lanes_and_weights_below_one_are_refused() -> None:
    with pytest.raises(KeyError):
        LanePicker().arrived("urgent", 0.0)
    with pytest.raises(ValueError, match="weight"):
        LanePicker({"interactive": 1, "batch": 0})


@given(st.lists(st.floats(0.0, 0.6), min_size=50, max_size=200))
def test_no_waiting_lane_goes_unserved_for_longer_than_the_bound(gaps_s: list[float]) -> None:
    picker = busy_picker()
    served_s = dict.fromkeys(picker.lanes, 0.0)
    now_s = 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        lane = picker.pick(now_s)
        assert lane is not None
        served_s[lane] = now_s
        assert all(now_s - last_s <= WAIT_BOUND_S for last_s in served_s.values())


def test_lanes_take_turns_when_slots_come_free_rarely() -> None:
    picker = busy_picker()
    assert Counter(picker.pick(30.0 * turn) for turn in range(1, 31)) == dict.fromkeys(WEIGHTS, 10)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(WEIGHTS)), st.integers(0, 3), st.floats(0.0, 0.6)),
        min_size=20,
        max_size=200,
    )
)
def test_the_bound_counts_from_the_first_waiting_work(steps: list[tuple[str, int, float]]) -> None:
    picker = LanePicker()
    queued = dict.fromkeys(WEIGHTS, 0)
    since_s: dict[str, float] = {}
    now_s = 0.0
    for arriving, count, gap_s in steps:
        now_s += gap_s
        if count:
            queued[arriving] += count
            picker.arrived(arriving, now_s)
            since_s.setdefault(arriving, now_s)
        lane = picker.pick(now_s)
        assert (lane is None) == (not any(queued.values()))
        if lane is not None:
            queued[lane] -= 1
            since_s[lane] = now_s
            if not queued[lane]:
                picker.emptied(lane)
                del since_s[lane]
        assert all(now_s - waited_s <= WAIT_BOUND_S for waited_s in since_s.values())


def test_a_lane_that_had_the_spare_slots_has_had_its_turns() -> None:
    """Its weight is a least share: what it got while nothing heavier waited counts."""
    picker = LanePicker()
    picker.arrived("batch", 0.0)
    for _ in range(4):
        picker.pick(0.0)
    picker.arrived("interactive", 0.0)
    order = [picker.pick(0.0) for _ in range(60)]
    assert order[:36] == ["interactive"] * 36
    assert Counter(order[36:54]) == {"interactive": 16, "batch": 2}


def test_turns_that_were_had_are_counted_up_to_a_bound() -> None:
    picker = LanePicker()
    picker.arrived("batch", 0.0)
    for _ in range(10_000):
        picker.pick(0.0)
    picker.arrived("interactive", 0.0)
    order = [picker.pick(0.0) for _ in range(9 * 34)]
    assert "batch" in order[9 * 32 :]
    assert order.count("batch") >= 1


def test_the_wait_bound_holds_for_a_lane_that_had_the_spare_slots() -> None:
    picker = LanePicker()
    picker.arrived("batch", 0.0)
    for _ in range(100):
        picker.pick(0.0)
    picker.arrived("interactive", 0.0)
    order = [picker.pick(0.5 * turn) for turn in range(1, 20)]
    assert "batch" in order


def test_a_barred_lane_is_passed_over_and_loses_nothing() -> None:
    picker = busy_picker()
    barred = ("standard", "batch")
    assert {picker.pick(1.0, barred) for _ in range(20)} == {"interactive"}
    assert picker.pick(9.0) in barred  # it waited longest
    picker.emptied("interactive")
    assert picker.pick(9.0, barred) is None
