"""The stall watch: silence counts only where somebody asks, and only when there is something to read."""

from __future__ import annotations

from collections.abc import Collection

from services.adapters.kafka.stall import StallCheck, StallWatch
from services.ports import BusError

PATIENCE_S = 8.0


def poll(watch: StallWatch, wanted: Collection[int], now_s: float, *, returned: Collection[int] = ()) -> None:
    """A poll that took no time and left nothing behind."""
    watch.began(wanted, now_s)
    watch.ended(returned, now_s, drained=True)


def polled_from(watch: StallWatch, start_s: float, end_s: float, wanted: Collection[int] = (0, 1)) -> None:
    """Empty polls twice a second."""
    for half in range(int(start_s * 2), int(end_s * 2) + 1):
        poll(watch, wanted, half / 2)


def test_a_partition_is_suspected_after_half_the_patience_of_empty_polls() -> None:
    watch = StallWatch(PATIENCE_S)
    polled_from(watch, 0, 3.5)
    assert watch.suspects(3.5) == []
    polled_from(watch, 4, 4)
    assert watch.suspects(4) == [0, 1]


def test_records_clear_the_partition_they_came_from() -> None:
    watch = StallWatch(PATIENCE_S)
    polled_from(watch, 0, 4)
    poll(watch, (0, 1), 4.2, returned=[1])
    assert watch.suspects(4.2) == [0]


def test_a_partition_that_is_not_asked_for_is_never_suspected() -> None:
    watch = StallWatch(PATIENCE_S)
    polled_from(watch, 0, 3)
    polled_from(watch, 3.5, 20, wanted=(0,))
    assert watch.suspects(20) == [0]


def test_a_break_in_polling_begins_everything_anew() -> None:
    watch = StallWatch(PATIENCE_S)
    polled_from(watch, 0, 4)
    assert watch.suspects(5.5) == []
    polled_from(watch, 6, 9.5)
    assert watch.suspects(9.5) == []


def test_a_partition_behind_full_polls_is_not_suspected() -> None:
    watch = StallWatch(PATIENCE_S)
    for second in range(20):
        watch.began((0, 1), second)
        watch.ended([0], second, drained=False)
    assert watch.suspects(19) == []


def test_a_poll_that_never_returns_is_suspected() -> None:
    watch = StallWatch(PATIENCE_S)
    watch.began((0, 1), 0)
    assert watch.suspects(3.9) == []
    assert watch.suspects(4) == [0, 1]


def test_new_partitions_begin_anew() -> None:
    watch = StallWatch(PATIENCE_S)
    polled_from(watch, 0, 4)
    watch.forget()
    polled_from(watch, 4.5, 5)
    assert watch.suspects(5) == []


class Broker:
    """Ends and positions as a test sets them."""

    def __init__(self, ends: dict[int, int], positions: dict[int, int]) -> None:
        self.log_ends, self.positions = ends, positions
        self.answers = True

    async def ends(self, partitions: Collection[int]) -> dict[int, int]:
        if not self.answers:
            raise BusError("away")
        return {partition: self.log_ends[partition] for partition in partitions}

    async def position(self, partition: int) -> int | None:
        return self.positions.get(partition)

    def check(self, watch: StallWatch, *, forgetful: bool = False) -> StallCheck:
        return StallCheck(watch, ends=self.ends, position=self.position, forgetful=forgetful)


async def why_at_the_end(check: StallCheck, watch: StallWatch, until_s: float) -> str | None:
    """The verdict at `until_s`, having looked every second of empty polls."""
    verdict = None
    for second in range(int(until_s) + 1):
        polled_from(watch, second, second + 0.5)
        verdict = await check.why_stalled(second + 0.5)
    return verdict


async def test_unread_records_through_the_whole_patience_are_a_stall() -> None:
    broker, watch = Broker({0: 5, 1: 9}, {0: 5, 1: 7}), StallWatch(PATIENCE_S)
    assert await why_at_the_end(broker.check(watch), watch, 7) is None
    verdict = await why_at_the_end(broker.check(watch), watch, 12)
    assert verdict is not None
    assert "[1]" in verdict


async def test_an_idle_partition_is_no_stall_nor_is_a_record_that_just_arrived() -> None:
    broker, watch = Broker({0: 5, 1: 7}, {0: 5, 1: 7}), StallWatch(PATIENCE_S)
    check = broker.check(watch)
    assert await why_at_the_end(check, watch, 30) is None
    broker.log_ends[1] = 8
    assert await check.why_stalled(30.6) is None
    broker.positions[1] = 8
    assert await why_at_the_end(check, watch, 60) is None


async def test_a_broker_that_is_away_is_no_stall() -> None:
    broker, watch = Broker({0: 5, 1: 9}, {0: 5, 1: 7}), StallWatch(PATIENCE_S)
    broker.answers = False
    assert await why_at_the_end(broker.check(watch), watch, 30) is None


async def test_a_position_beyond_the_end_is_a_stall_where_the_broker_forgets() -> None:
    broker = Broker({0: 0, 1: 0}, {0: 3, 1: 0})
    for forgetful in (False, True):
        watch = StallWatch(PATIENCE_S)
        verdict = await why_at_the_end(broker.check(watch, forgetful=forgetful), watch, 30)
        assert (verdict is not None) == forgetful
