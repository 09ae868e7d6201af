"""Which backend a try goes to, how healthy it is, and what its metrics say (CASES R4)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.fleet_messages import BackendHealth
from services.core.backend_health import ENOUGH, RECENT, SETTLED, Health
from services.core.backend_metrics import ServerLoad, load_of
from services.core.balance import (
    AFFINITY_FACTOR,
    Candidate,
    Predicted,
    Preference,
    affinity_key,
    foreign_work,
    pick,
)
from services.core.fleet import BreakerLaw

LAW = BreakerLaw(window_s=30, slow_factor=3)
HEALTH: st.SearchStrategy[BackendHealth] = st.sampled_from(["healthy", "slow", "unavailable"])
CANDIDATES = st.lists(st.tuples(st.floats(0, 1e5), HEALTH), min_size=1, max_size=6).map(
    lambda found: [Candidate(f"b{at}", work, health) for at, (work, health) in enumerate(found)]
)
KEYS = st.none() | st.text(max_size=20)


def cost_of(name: str, candidates: list[Candidate]) -> float:
    return next(each.cost for each in candidates if each.name == name)


@given(CANDIDATES, KEYS, st.floats(0, 1, exclude_max=True), st.floats(0, 1e4), st.integers(0, 7))
def test_the_least_work_is_taken_or_the_preferred_within_the_bound(
    candidates: list[Candidate], key: str | None, uniform: float, usual: float, avoid: int
) -> None:
    wish = Preference(key, "soft", usual, f"b{avoid}")
    chosen = pick(candidates, wish, lambda: uniform)
    able = [each for each in candidates if each.name != wish.avoid] or candidates
    assert chosen in {each.name for each in able}
    least = min(each.cost for each in able)
    bound = least if key is None else AFFINITY_FACTOR * least + usual
    assert cost_of(chosen, candidates) <= bound


def test_off_looks_at_work_alone_and_sticky_at_the_key_alone() -> None:
    idle, busy = Candidate("idle", 0), Candidate("busy", 1e6)
    keys = [f"session-{at}" for at in range(40)]
    assert {pick([idle, busy], Preference(key, "off"), lambda: 0) for key in keys} == {"idle"}
    assert {pick([idle, busy], Preference(key, "soft", 100), lambda: 0) for key in keys} == {"idle"}
    assert {pick([idle, busy], Preference(key, "sticky"), lambda: 0) for key in keys} == {"idle", "busy"}


def test_a_slow_backend_gets_work_only_when_the_others_have_three_times_as_much() -> None:
    slow = Candidate("slow", 100, "slow")
    assert pick([slow, Candidate("well", 250)], Preference(), lambda: 0) == "well"
    assert pick([slow, Candidate("well", 350)], Preference(), lambda: 0) == "slow"
    assert pick([slow, Candidate("well", 100)], Preference("any", "soft", 10), lambda: 0) == "well"


def test_keys_spread_evenly_and_move_only_when_their_backend_goes() -> None:
    backends = [Candidate(f"http://10.0.0.{at}:8000", 0) for at in range(4)]
    keys = [f"session-{at:05d}" for at in range(4_000)]
    before = {key: pick(backends, Preference(key), lambda: 0) for key in keys}
    counts = Counter(before.values())
    assert len(counts) == 4
    assert max(counts.values()) < 1.2 * min(counts.values())
    gone = backends.pop(1).name
    after = {key: pick(backends, Preference(key), lambda: 0) for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == gone}
    assert max(Counter(after.values()).values()) < 1.25 * min(Counter(after.values()).values())


@given(st.floats(0, 1e5), st.floats(0, 1e4), st.integers(0, 20_000))
def test_predicted_work_never_ends_before_the_answer_and_decays_with_it(
    input_tokens: float, output_tokens: float, produced: int
) -> None:
    tried = Predicted(input_tokens, output_tokens)
    assert tried.left(0) == tried.work
    assert tried.left(produced) > 0 or tried.work == 0
    if 1 <= produced < output_tokens / 2:
        assert tried.left(produced) <= tried.work
        assert tried.left(produced + 1) <= tried.left(produced)


def test_work_beside_ours_is_what_the_server_has_more_than_we_sent() -> None:
    assert foreign_work(running=4, waiting=3, ours=5, usual=100) == 200
    assert foreign_work(running=1, waiting=0, ours=5, usual=100) == 0


def test_a_session_or_a_long_beginning_is_worth_keeping() -> None:
    long = "You are a careful assistant. " * 100
    messages = [{"role": "system", "content": long}, {"role": "user", "content": "a"}]
    key = affinity_key(None, {"messages": messages})
    assert key
    assert key == affinity_key(None, {"messages": [messages[0], {"role": "user", "content": "b"}]})
    assert affinity_key("mine", {"messages": messages}) == "mine"
    nothing: list[Any] = [[], [{"content": "short"}], [{"content": [1]}], ["odd"], None]
    assert {affinity_key(None, {"messages": found}) for found in nothing} == {None}


def usually(first_s: float = 0.1, tries: int = 50) -> Health:
    health = Health(LAW)
    for at in range(tries):
        health.answered(-100.0 + at / 10, first_s, 1.0, 100)
    return health


def state(health: Health, now_s: float = 0.0, silent_s: float = 0.0) -> BackendHealth:
    return health.state(now_s, "closed", reachable=True, silent_s=silent_s)


def test_slow_by_first_tokens_or_by_rate_and_only_after_enough_of_them() -> None:
    late, crawling = usually(), usually()
    for _ in range(ENOUGH):
        assert state(late) == state(crawling) == "healthy"
        late.answered(0.0, 1.0, 1.0, 100)
        crawling.answered(0.0, 0.1, 8.0, 100)
    assert state(late) == state(crawling) == "slow"
    new = Health(LAW)
    for at in range(SETTLED - 1):
        new.answered(0.0, float(10**at), 1.0, 100)
        assert state(new) == "healthy"  # nothing is usual yet


def test_a_backend_is_well_again_below_halfway_or_when_nobody_has_tried_it_for_a_window() -> None:
    health = usually()
    for _ in range(RECENT):
        health.answered(0.0, 1.0, 1.0, 100)
    assert state(health) == "slow"
    usual_s = health._first.usual_s
    for _ in range(RECENT):  # better, but not yet well
        health.answered(1.0, 2.5 * usual_s, 1.0, 100)
        assert state(health, 1.0) == "slow"
    for _ in range(RECENT):
        health.answered(2.0, 1.5 * usual_s, 1.0, 100)
    assert state(health, 2.0) == "healthy"
    again = usually()
    for _ in range(RECENT):
        again.waited(0.0, 5.0)
    assert state(again) == "slow"
    assert state(again, LAW.window_s + 1) == "healthy"


def test_r4_silence_makes_it_slow_at_once_and_short_waits_never_do() -> None:
    health = usually()
    assert state(health, silent_s=0.3) == "healthy"
    assert state(health, silent_s=0.4) == "slow"
    for _ in range(RECENT):
        health.waited(0.0, 0.2)
    assert state(health) == "healthy"
    assert state(Health(LAW), silent_s=100.0) == "healthy"  # nobody knows what is usual there


def test_a_few_milliseconds_more_are_not_slow() -> None:
    health = usually(first_s=0.004)
    for _ in range(RECENT):
        health.answered(0.0, 0.05, 1.0, 100)
    assert state(health) == "healthy"


@given(st.sampled_from(["open", "half_open", "closed"]), st.booleans())
def test_unavailable_where_it_may_not_or_cannot_be_called(breaker: str, there: bool) -> None:
    found = usually().state(0.0, breaker, reachable=there)  # type: ignore[arg-type] # drawn from the literals
    assert (found == "unavailable") == (breaker != "closed" or not there)


def test_the_load_is_read_under_every_known_name() -> None:
    llama = [("llamacpp:requests_processing", 2.0), ("llamacpp:requests_deferred", 3.0)]
    assert load_of(llama) == ServerLoad(2.0, 3.0, None, None)
    vllm = [("vllm:num_requests_running", 1.0), ("vllm:num_requests_running", 2.0)]
    vllm += [("vllm:num_requests_waiting", 0.0), ("vllm:kv_cache_usage_perc", 0.25), ("other", 9.0)]
    vllm += [("DCGM_FI_DEV_GPU_UTIL", 50.0), ("vllm:gpu_cache_usage_perc", 0.5)]
    assert load_of(vllm) == ServerLoad(3.0, 0.0, 0.5, 0.5)
    assert load_of([("process_cpu_seconds", 1.0)]) is None
    assert load_of([("vllm:num_requests_waiting", float("nan"))]) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 300)), min_size=50, max_size=200))
def test_equal_backends_share_the_work(tries: list[tuple[float, int]]) -> None:
    """By predicted work, not by count: at every pick the difference stays below the largest try."""
    source, work = random.Random(7), {"a": 0.0, "b": 0.0}
    for _, tokens in tries:
        chosen = pick([Candidate(n, w) for n, w in work.items()], Preference(), source.random)
        work[chosen] += tokens
        assert abs(work["a"] - work["b"]) <= 300
