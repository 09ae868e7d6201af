"""Cancelled tasks stay cancelled until their deadline, and are forgotten after it."""

from hypothesis import given
from hypothesis import strategies as st

from services.core.tombstones import Tombstones


def test_a_cancelled_task_is_cancelled_and_others_are_not() -> None:
    stones = Tombstones()
    stones.add("t", "cancelled", 10.0)
    assert stones.cancelled("t") == "cancelled"
    assert stones.cancelled("other") is None


def test_the_first_reason_stands_and_the_later_deadline_counts() -> None:
    stones = Tombstones()
    stones.add("t", "cancelled", 10.0)
    stones.add("t", "poison", 20.0)
    stones.add("t", "deadline", 5.0)
    assert stones.purge(19.9) == 0
    assert stones.cancelled("t") == "cancelled"
    assert stones.purge(20.0) == 1
    assert stones.cancelled("t") is None


def test_a_purge_does_a_bounded_amount_of_work() -> None:
    stones = Tombstones()
    for number in range(10):
        stones.add(f"t{number}", "cancelled", 1.0)
    assert [stones.purge(2.0, at_most=4) for _ in range(4)] == [4, 4, 2, 0]
    assert len(stones) == 0


STONES = st.tuples(st.sampled_from("abc"), st.integers(0, 20))


@given(st.lists(STONES), st.integers(0, 20))
def test_exactly_what_is_past_its_deadline_goes(added: list[tuple[str, int]], now_s: int) -> None:
    stones = Tombstones()
    latest: dict[str, int] = {}
    for task_id, deadline_s in added:
        stones.add(task_id, "cancelled", deadline_s)
        latest[task_id] = max(deadline_s, latest.get(task_id, 0))
    stones.purge(now_s)
    alive = {task_id for task_id, deadline_s in latest.items() if deadline_s > now_s}
    for task_id in "abc":
        assert (stones.cancelled(task_id) is not None) == (task_id in alive)
    assert len(stones) == len(alive)
