"""Tenants by virtual token counters: the bounds of the paper, what is forgotten, and how much work it is."""

from __future__ import annotations

import random
from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core import fair_share
from services.core.fair_share import FairQueue, TokenCounters


class Item:
    def __init__(self, tenant: str, tokens: float) -> None:
        self.tenant, self.tokens = tenant, tokens
        self.ready = False


def served(queue: FairQueue[Item]) -> Item | None:
    item = queue.peek()
    if item is not None:
        queue.counters.charge(item.tenant, item.tokens)
        queue.discard(item, item.tenant)
    return item


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
COSTS = st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.0, 100.0)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(costs=COSTS, slots=st.integers(1, 6), burst=st.sampled_from([0.0, 500.0]))
def test_backlogged_tenants_get_tokens_by_weight_within_the_papers_bound(
    costs: list[tuple[float, float]], slots: int, burst: float
) -> None:
    """In any interval the served tokens per weight differ by at most 2 U, U the most that one tenant can have
    uncharged or wrongly charged at once: a charge, and what the predictions of its slots were wrong by."""
    queue: FairQueue[Item] = FairQueue(WEIGHTS, burst)
    pairs = cycle(costs)
    for seq in range(900):
        tenant = "abc"[seq % 3]
        queue.push(Item(tenant, next(pairs)[0]), tenant, 0.0, seq)
    used = cycle([real for _, real in costs])
    running: list[tuple[Item, float]] = []
    got = dict.fromkeys(WEIGHTS, 0.0)
    history = [dict(got)]
    for _ in range(150):  # nobody's work runs out
        if len(running) == slots:
            item, real = running.pop(0)
            queue.counters.correct(item.tenant, item.tokens, real)
            got[item.tenant] += real / WEIGHTS[item.tenant]
        item_now = served(queue)
        assert item_now is not None
        running.append((item_now, next(used)))
        history.append(dict(got))
    most = (100.0 + slots * 100.0) / min(WEIGHTS.values())
    for one, other in ("ab", "bc", "ac"):
        gaps = [at[one] - at[other] for at in history]
        assert max(gaps) - min(gaps) <= 2 * most


@given(st.lists(st.floats(1.0, 50.0), min_size=1, max_size=40))
def test_with_exact_predictions_the_gap_is_twice_the_largest_charge(costs: list[float]) -> None:
    queue: FairQueue[Item] = FairQueue({})
    for seq, cost in enumerate(costs):
        for tenant in "ab":
            queue.push(Item(tenant, cost), tenant, 0.0, seq * 2 + (tenant == "b"))
    gap, gaps = 0.0, [0.0]
    for _ in costs:
        item = served(queue)
        assert item is not None
        gap += item.tokens if item.tenant == "a" else -item.tokens
        gaps.append(gap)
    assert max(gaps) - min(gaps) <= 2 * max(costs) + 1e-6


def test_a_flood_takes_no_turns_of_a_tenant_that_asks_little() -> None:
    queue: FairQueue[Item] = FairQueue({}, burst=50.0)
    for seq in range(1_000):
        queue.push(Item("flood", 10.0), "flood", 0.0, seq)
    for _ in range(20):
        served(queue)
    for seq in range(4):
        queue.push(Item("steady", 10.0), "steady", 0.0, 2_000 + seq)
    assert [item.tenant for item in (served(queue) for _ in range(5)) if item][:4] == ["steady"] * 4


@given(idle=st.integers(1, 200), burst=st.sampled_from([0.0, 35.0]))
def test_idle_time_saves_up_no_more_than_the_burst(idle: int, burst: float) -> None:
    queue: FairQueue[Item] = FairQueue({}, burst)
    for seq in range(2 * idle + 100):
        queue.push(Item("busy", 10.0), "busy", 0.0, seq)
    for _ in range(idle):
        served(queue)
    for seq in range(100):
        queue.push(Item("late", 10.0), "late", 0.0, 10_000 + seq)
    turns = Counter(item.tenant for item in (served(queue) for _ in range(60)) if item)
    assert turns["late"] - turns["busy"] <= burst / 10.0 + 2
    assert turns["late"] >= turns["busy"]


def test_a_tenant_whose_task_still_runs_saves_nothing_up_either() -> None:
    """It is remembered meanwhile, with the counter it had."""
    counters = TokenCounters({})
    for tenant in ("long", "busy", "busy"):
        counters.arrived(tenant)
    counters.charge("long", 1.0)
    counters.left("long")
    for _ in range(50):
        counters.arrived("busy")
        counters.charge("busy", 10.0)
        counters.left("busy")
    counters.arrived("long")
    lifted, level = counters.counter("long"), counters.counter("busy")
    assert lifted is not None
    assert level is not None
    assert lifted >= level - 10.0


def test_work_that_was_thrown_away_is_not_paid_for() -> None:
    counters = TokenCounters({})
    for _ in range(2):
        counters.arrived("a")
    counters.charge("a", 70.0)
    counters.left("a")
    assert counters.counter("a") == 70.0
    counters.correct("a", 70.0, 0.0)
    assert counters.counter("a") == 0.0


def test_tenants_that_are_gone_are_forgotten() -> None:
    queue: FairQueue[Item] = FairQueue({}, burst=20.0)
    for number in range(5_000):
        tenant = f"t{number}"
        queue.push(Item(tenant, 10.0), tenant, 0.0, number)
        item = served(queue)
        assert item is not None
        queue.counters.correct(tenant, 10.0, 10.0)
    assert len(queue.counters) < 10
    assert len(queue.counters._owing) + len(queue.counters._order) < 4_000


def test_a_debt_outlives_the_tenants_idle_time() -> None:
    counters = TokenCounters({})
    for tenant in ("busy", "gone"):
        counters.arrived(tenant)
    counters.charge("gone", 1_000.0)
    counters.left("gone")
    counters.correct("gone", 1_000.0, 1_000.0)
    counters.arrived("gone")
    assert counters.counter("gone") == 1_000.0
    assert counters.lowest() == "busy"


def test_debts_of_idle_tenants_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "MOST_IDLE", 50)
    counters = TokenCounters({})
    counters.arrived("busy")
    for number in range(3_000):
        tenant = f"t{number}"
        counters.arrived(tenant)
        counters.charge(tenant, 1.0 + number)
        counters.left(tenant)
        counters.correct(tenant, 1.0, 1.0)
    assert len(counters) <= 50 + fair_share._LEFTOVERS + 2


def test_a_weight_must_be_more_than_zero() -> None:
    with pytest.raises(ValueError, match="weight of tenant a"):
        TokenCounters({"a": 0.0})


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "serve", "remove", "end"]), st.integers(0, 30), st.integers(0, 4)),
        max_size=120,
    )
)
def test_order_and_removal_against_plain_lists(steps: list[tuple[str, int, int]]) -> None:
    queue: FairQueue[Item] = FairQueue({})
    waiting: dict[str, list[tuple[float, int, Item]]] = {}
    running: list[Item] = []
    for seq, (step, number, who) in enumerate(steps):
        tenant = f"t{who}"
        if step == "push":
            item = Item(tenant, 1.0 + number)
            queue.push(item, tenant, float(number % 3), seq)
            waiting.setdefault(tenant, []).append((float(number % 3), seq, item))
        elif step == "remove" and waiting.get(tenant):
            place = waiting[tenant].pop(number % len(waiting[tenant]))
            queue.discard(place[2], tenant)
        elif step == "end" and running:
            item = running.pop(0)
            queue.counters.correct(item.tenant, item.tokens, float(number))
        elif step == "serve":
            least = {t: queue.counters.counter(t) for t, places in waiting.items() if places}
            got = served(queue)
            if not least:
                assert got is None
                continue
            assert got is not None
            counter = least[got.tenant]
            assert counter is not None
            assert all(other is not None and counter <= other for other in least.values())
            first = min(waiting[got.tenant], key=lambda place: place[:2])
            assert got is first[2]
            waiting[got.tenant].remove(first)
            running.append(got)
        assert len(queue) == sum(len(places) for places in waiting.values())


def test_the_work_of_an_operation_grows_like_a_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in heap operations, each O(log n): a constant number per step, whatever is queued."""
    calls = Counter[str]()

    def counting(name: str) -> None:
        original = {"heappush": heappush, "heappop": heappop}[name]

        def wrapped(*args: object) -> object:
            calls[name] += 1
            return original(*args)  # type: ignore[operator]  # either of the two

        monkeypatch.setattr(fair_share, name, wrapped)

    counting("heappush")
    counting("heappop")

    def counted_heapify(heap: list[object]) -> None:
        calls["swept"] += len(heap)
        heapify(heap)  # type: ignore[type-var]  # places in a heap, which compare

    monkeypatch.setattr(fair_share, "heapify", counted_heapify)
    steps: dict[int, float] = {}
    for size in (500, 10_000):
        calls.clear()
        queue: FairQueue[Item] = FairQueue({})
        draw = random.Random(1)
        items = [Item(f"t{draw.randrange(size // 10)}", draw.random()) for _ in range(size)]
        for seq, item in enumerate(items):
            queue.push(item, item.tenant, draw.random(), seq)
        for item in items[::3]:
            queue.discard(item, item.tenant)
        while (got := served(queue)) is not None:
            queue.counters.correct(got.tenant, got.tokens, 1.0)
        steps[size] = sum(calls.values()) / size
    assert steps[10_000] < 12
    assert steps[10_000] < steps[500] * 1.5
