"""Ended tasks are known for a while, in bounded memory."""

from services.core.recently_done import RecentlyDone


def test_an_ended_task_is_known_for_the_window() -> None:
    ended = RecentlyDone(window_s=600.0)
    ended.add("t", 100.0)
    assert ended.ended("t", 700.0)
    assert not ended.ended("t", 700.1)
    assert not ended.ended("other", 100.0)


def test_ending_again_begins_the_window_again() -> None:
    ended = RecentlyDone(window_s=600.0, max_ids=2)
    ended.add("a", 0.0)
    ended.add("b", 1.0)
    ended.add("a", 2.0)
    ended.add("c", 3.0)
    assert ended.ended("a", 602.0)
    assert not ended.ended("b", 3.0), "the oldest left when the bound was reached"


def test_memory_is_bounded_by_count_and_by_age() -> None:
    ended = RecentlyDone(window_s=10.0, max_ids=100)
    for number in range(1_000):
        ended.add(f"t{number}", 0.0)
    assert len(ended) == 100
    for number in range(200):
        ended.add(f"u{number}", 11.0 + number)
    assert len(ended) == 11
