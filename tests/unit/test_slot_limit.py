"""The adaptive limit of a backend: its bounds, what cuts it, what does not, and where it settles."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.slot_limit import Answered, SlotLimit

LEAST, MOST = 1, 32


@dataclass
class Server:
    """A model server with `knee` slots and a queue, asked by one worker that always has more to ask.

    Seconds: a prompt of usual size is read in prefill_s, its answer takes service_s; `spread` is the sigma of
    the logarithm of sizes and lengths, `neighbour` slows all down for each try more in flight.
    """

    knee: int
    seed: int
    prefill_s: float = 0.1
    service_s: float = 2.0
    spread: float = 0.8
    neighbour: float = 0.0
    first_neighbour: float = 0.0  # as `neighbour`, of prompts alone
    prefill_factor: Callable[[int], float] = lambda _: 1.0

    def serve(self, limit: Callable[[], int], tries: int, heard: Callable[[float, Answered], None]) -> float:
        """Tries per second. `heard` is told of every end."""
        draw, now_s, in_flight, number = random.Random(self.seed), 0.0, 0, itertools.count()
        free = [0.0] * self.knee
        ends: list[tuple[float, int, Answered]] = []
        for done in range(tries):
            while in_flight < limit():
                in_flight += 1
                size = draw.lognormvariate(6, self.spread)
                prefill_s = self.prefill_s * (0.5 + size / 800 * draw.lognormvariate(0, self.spread))
                prefill_s *= self.prefill_factor(done) * (1 + self.first_neighbour * in_flight)
                service_s = self.service_s * draw.lognormvariate(0, self.spread)
                service_s *= 1 + self.neighbour * in_flight
                first_s = max(now_s, heapq.heappop(free)) + prefill_s
                heapq.heappush(free, first_s + service_s)
                end = Answered(now_s, in_flight, first_s - now_s, size, service_s)
                heapq.heappush(ends, (first_s + service_s, next(number), end))
            now_s, _, answered = heapq.heappop(ends)
            in_flight -= 1
            heard(now_s, answered)
        return tries / now_s


def deaf(now_s: float, end: Answered) -> None:
    """For a limit that is fixed."""


def settled(server: Server, tries: int = 4_000) -> tuple[list[int], float]:
    """The limit over the second half of the tries, and throughput against that of all slots."""
    limit, seen = SlotLimit(LEAST, MOST), []

    def heard(now_s: float, end: Answered) -> None:
        limit.answered(now_s, end)
        seen.append(limit.limit)

    rate = server.serve(lambda: limit.limit, tries, heard)
    return seen[tries // 2 :], rate / server.serve(lambda: MOST, tries, deaf)


@pytest.mark.parametrize("knee", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_the_limit_finds_the_knee_and_costs_hardly_any_throughput(knee: int, seed: int) -> None:
    limits, throughput = settled(Server(knee, seed))
    assert knee / 2 <= sum(limits) / len(limits) <= 2 * knee
    assert throughput > 0.95


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("spread", "neighbour"), [(0.8, 0.0), (1.2, 0.0), (1.5, 0.0), (0.8, 0.02)])
def test_where_nothing_queues_all_slots_stay(spread: float, neighbour: float, seed: int) -> None:
    """Heavy tails of prompts and answers, and a batch that slows down all alike, are no congestion."""
    limits, throughput = settled(Server(knee=64, seed=seed, spread=spread, neighbour=neighbour))
    assert set(limits) == {MOST}
    assert throughput == 1.0


def test_a_fast_server_keeps_all_slots_whatever_queues_for_milliseconds() -> None:
    limits, _ = settled(Server(knee=2, seed=1, prefill_s=0.0005, service_s=0.005))
    assert set(limits) == {MOST}


@pytest.mark.parametrize("seed", range(5))
def test_a_server_that_became_slower_by_itself_costs_one_trial(seed: int) -> None:
    server = Server(knee=64, seed=seed, prefill_factor=lambda done: 1.0 if done < 1_000 else 30.0)
    limits, throughput = settled(server)
    assert limits[-1] == MOST
    assert sum(limits) / len(limits) > 0.9 * MOST
    assert throughput > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_slots_that_all_do_work_are_kept_though_first_tokens_come_late(seed: int) -> None:
    limits, throughput = settled(Server(knee=64, seed=seed, service_s=20.0, first_neighbour=0.5))
    assert min(limits) >= MOST / 2
    assert sum(limits) / len(limits) > 0.9 * MOST
    assert throughput > 0.9


def end_of(latency_s: float, *, started_s: float, in_flight: int = MOST) -> Answered:
    return Answered(started_s, in_flight, latency_s, size=100, work=1)


def feed(limit: SlotLimit, now_s: float, count: int, latency_s: float = 0.1) -> float:
    for _ in range(count):
        now_s += 0.1
        limit.answered(now_s, end_of(latency_s, started_s=now_s - latency_s, in_flight=limit.limit))
    return now_s


def test_a_burst_of_refusals_cuts_once_and_the_next_one_again() -> None:
    limit = SlotLimit(LEAST, MOST)
    for _ in range(20):
        limit.refused(10.0, started_s=9.0, in_flight=MOST)
    assert limit.limit == int(MOST * 0.7)
    for _ in range(20):
        limit.refused(12.0, started_s=11.0, in_flight=limit.limit)
    assert limit.limit == int(int(MOST * 0.7) * 0.7)


def refused_at_eight() -> SlotLimit:
    """A limit of 5: each refusal halves it at most, until what was in flight is what counts."""
    limit = SlotLimit(LEAST, MOST)
    for at_s in (9.4, 9.7, 10.0):
        limit.refused(at_s, started_s=at_s - 0.1, in_flight=8)
    assert limit.limit == 5
    return limit


def test_the_limit_recovers_by_one_for_each_window_that_uses_it() -> None:
    limit = refused_at_eight()
    now_s = feed(limit, 10.0, 16)
    assert limit.limit == 6
    feed(limit, now_s, 3_000)
    assert limit.limit == MOST


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = refused_at_eight()
    for second in range(500):
        limit.answered(11.0 + second, end_of(0.1, started_s=10.9 + second, in_flight=2))
    assert limit.limit == 5


def test_a_few_late_tries_are_no_congestion() -> None:
    limit = SlotLimit(LEAST, MOST)
    now_s = feed(limit, 0.0, 200)
    for number in range(600):
        now_s += 0.1
        latency_s = 0.1 if number % 4 == 0 else 30.0
        limit.answered(now_s, end_of(latency_s, started_s=now_s - latency_s))
    assert limit.limit == MOST


_ENDS = st.lists(
    st.tuples(
        st.booleans(),
        st.floats(0, 100),
        st.integers(1, 100),
        st.floats(0, 1e6),
        st.floats(0, 1e6),
        st.floats(0, 5),
    ),
    max_size=300,
)


@settings(max_examples=100, deadline=None)
@given(_ENDS, st.integers(1, 8), st.integers(0, 30))
def test_whatever_happens_the_limit_stays_within_its_bounds(
    ends: list[tuple[bool, float, int, float, float, float]], least: int, more: int
) -> None:
    limit, now_s = SlotLimit(least, least + more), 0.0
    for refused, latency_s, in_flight, size, work, later_s in ends:
        now_s += later_s
        if refused:
            limit.refused(now_s, now_s - latency_s, in_flight)
        else:
            limit.answered(now_s, Answered(now_s - latency_s, in_flight, latency_s, size, work))
        assert least <= limit.limit <= least + more


def test_one_refusal_of_an_almost_idle_backend_takes_half_of_its_slots_at_most() -> None:
    limit = SlotLimit(least=1, most=32)
    limit.refused(10.0, started_s=9.9, in_flight=1)
    assert limit.limit == 16
