"""The simulated backend takes the time its law says, queues, fails by shares, and repeats it by its seed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest

from schemas.failures import FailureKind
from services.adapters.model_backends.simulated import SimulatedBackend
from services.core.fleet import SimulatedFailures, SimulatedLaw, Timeouts
from services.ports import BackendFault, ModelCall
from services.runtime.fleet_file import FleetFileError, parse_fleet, to_fleet

BODY = orjson.dumps({"messages": [{"role": "user", "content": "x" * 3955}]})  # about 1,000 tokens
LAW = SimulatedLaw(output_tokens=32, prefill_s_per_1k=0.5, decode_s_per_token=0.01)


class Clock:
    """Sleeps at once, and adds up what was asked for."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def call(path: str = "/v1/chat/completions", body: bytes = BODY) -> ModelCall:
    return ModelCall("", path, body, "a", True, Timeouts())


async def told(backend: SimulatedBackend, made: ModelCall | None = None) -> list[dict[str, Any]]:
    async with aclosing(backend.events(made or call())) as events:  # type: ignore[type-var] # a generator
        return [event async for batch in events for event in batch]


async def end_of(backend: SimulatedBackend) -> FailureKind | str:
    try:
        events = await told(backend)
    except BackendFault as fault:
        return fault.kind
    return "answer" if any(event["choices"][0]["delta"] for event in events) else "empty"


async def test_a_call_takes_its_prefill_and_a_step_for_each_token() -> None:
    clock = Clock()
    await told(SimulatedBackend(LAW, lambda: 0.5, clock.sleep))
    assert clock.slept[0] == pytest.approx(0.5 * 1.0 + 0.01, rel=0.01)
    assert sum(clock.slept) == pytest.approx(0.5 + 32 * 0.01, rel=0.01)


async def test_a_step_grows_with_the_calls_in_work() -> None:
    clock = Clock()
    law = replace(LAW, prefill_s_per_1k=0.0, decode_s_per_neighbour=0.002)
    backend = SimulatedBackend(law, lambda: 0.5, clock.sleep)
    await asyncio.gather(*(told(backend) for _ in range(5)))
    per_token = max(clock.slept) / 2  # two tokens a step
    assert per_token == pytest.approx(0.01 + 4 * 0.002)
    assert (law.step_s(1), law.step_s(0)) == (0.01, 0.01)


async def test_spread_scales_a_call_and_a_mean_needs_no_tokens() -> None:
    clock = Clock()
    draws = iter([1.0 - 1e-9, 0.5])
    law = SimulatedLaw(mean_s=2.0, spread=0.25, ttft_share=0.5)
    await told(SimulatedBackend(law, lambda: next(draws), clock.sleep))
    assert sum(clock.slept) == pytest.approx(2.5)
    assert clock.slept[0] == pytest.approx(1.25)


async def test_what_finds_its_queue_full_is_refused_and_the_rest_wait_their_turn() -> None:
    law = replace(LAW, slots=1, queue=2)
    backend = SimulatedBackend(law, lambda: 0.5, Clock().sleep)
    ends = await asyncio.gather(*(end_of(backend) for _ in range(5)))
    assert Counter(ends) == {"answer": 3, FailureKind.OVERLOADED: 2}
    assert await end_of(backend) == "answer"  # every slot came back


async def test_failures_come_by_their_shares_and_the_same_by_the_same_seed() -> None:
    shares = SimulatedFailures(reset=0.1, rate_limited=0.1, error=0.1, hang=0.1, interrupt=0.1, empty=0.1)
    law = SimulatedLaw(failures=shares, seed=7)

    async def run(seed: int) -> list[FailureKind | str]:
        backend = SimulatedBackend(replace(law, seed=seed), lambda: 0.0, Clock().sleep)
        return [await end_of(backend) for _ in range(300)]

    first = await run(7)
    assert await run(7) == first
    assert await run(8) != first
    counts = Counter(first)
    assert set(counts) == {
        "answer",
        "empty",
        FailureKind.RESET,
        FailureKind.RATE_LIMITED,
        FailureKind.SERVER_ERROR,
        FailureKind.FIRST_TOKEN_TIMEOUT,
        FailureKind.INTERRUPTED,
    }
    assert 90 <= counts["answer"] <= 150
    assert all(10 <= counts[end] <= 60 for end in counts if end != "answer")


async def test_a_stream_that_breaks_has_said_something_before() -> None:
    law = SimulatedLaw(failures=SimulatedFailures(interrupt=1.0), output_tokens=1)
    events = SimulatedBackend(law, lambda: 0.5).events(call())
    assert (await anext(events))[0]["choices"][0]["delta"]["content"]
    with pytest.raises(BackendFault):
        await anext(events)


@pytest.mark.parametrize(("given", "rows"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2)])
async def test_embeddings_have_a_row_for_each_input(given: Any, rows: int) -> None:
    made = call("/v1/embeddings", orjson.dumps({"input": given}))
    (answer,) = await told(SimulatedBackend(SimulatedLaw(), lambda: 0.5), made)
    assert [row["index"] for row in answer["data"]] == list(range(rows))


FILE = """version: 1
pools:
  - name: sim
    model: m
    backend: simulated
    simulated: {%s}
"""


def test_the_fleet_file_takes_the_law_and_old_files_stay_as_they_were() -> None:
    given = "decode_s_per_token: 0.012, slots: 16, queue: 64, seed: 3, failures: {reset: 0.01, hang: 0.02}"
    law = to_fleet(parse_fleet(FILE % given, "f")).pools[0].simulated
    assert law == SimulatedLaw(
        decode_s_per_token=0.012,
        slots=16,
        queue=64,
        seed=3,
        failures=SimulatedFailures(reset=0.01, hang=0.02),
    )
    old = to_fleet(parse_fleet(FILE % "mean_s: 1.0, spread: 0.1", "f")).pools[0].simulated
    assert old == SimulatedLaw(mean_s=1.0, spread=0.1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("failures: {reset: 0.7, hang: 0.5}", "pools[0].simulated.failures: the shares are 1.2 together"),
        ("failures: {reset: 2}", "pools[0].simulated.failures.reset: 2"),
        ("failures: {melt: 0.1}", "pools[0].simulated.failures.melt: no such key; expected one of empty"),
        ("mean_s: 1.0, decode_s_per_token: 0.1", "pools[0].simulated: mean_s and decode_s_per_token both"),
        ("queue: 4", "pools[0].simulated: queue 4: nothing waits without slots"),
        ("decode_s_per_token: -1.0", "pools[0].simulated.decode_s_per_token: -1.0"),
    ],
)
def test_a_wrong_law_is_named_by_line_and_key(given: str, words: str) -> None:
    with pytest.raises(FleetFileError) as caught:
        parse_fleet(FILE % given, "fleet.yaml")
    assert str(caught.value).startswith("fleet.yaml:6: " + words)
