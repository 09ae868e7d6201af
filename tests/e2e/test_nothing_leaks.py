"""Q13: after a storm of failures of every kind all that was taken is back: slots, grants, waiters, calls."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from tests.e2e.fault_fleet import CLIENT_TIMEOUT_S, ask, body, everything, text_of
from tests.e2e.staged import Scripted, new_marker, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOTS = 6
SEED = 4
FLEET = """
version: 1
prefix: {prefix}
partitions: 4
devices:
  - name: gpu
    slots: {device_slots}
pools:
  - name: scripted
    model: breaking
    base_url: {base_url}
    slots: {slots}
    adaptive: false
    device: gpu
    context_tokens: 8192
    timeouts: {{connect_s: 1.0, first_token_s: 1.5, idle_s: 1.0, total_s: 20.0, min_tokens_per_s: 3.0}}
    breaker: {{min_calls: 100000}}
  - {{name: neighbour, model: breaking-too, base_url: {base_url}, slots: 2, device: gpu}}
"""
FAULTS: tuple[dict[str, Any], ...] = (
    {"status": 500},
    {"status": 429},
    {"status": 400, "error_body": "no"},
    {"html_error": True},
    {"reset_before": True},
    {"close_before": True},
    {"reset_after_chunks": 0},
    {"reset_after_chunks": 1},
    {"end_after_chunks": 1},
    {"hang_after_chunks": 0},
    {"hang_after_chunks": 1},
    {"empty": True},
    {"failed_terminal": True},
    {"bad_json_chunk": 1},
    {"json_not_sse": True},
    {"text": "slow as can be", "drip_s": 0.9},
    {"no_such_fault": True},  # the model server's own 400
)
BAD_BODIES = (b"", b"{", b"[]", b'{"model": "scripted"}', b"\xff" * 100, b"x" * (9 * 1024 * 1024))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    async with ModelServerProcess(model="breaking", chunks=6) as server:
        prefix = f"l{uuid.uuid4().hex[:8]}."
        text = FLEET.format(prefix=prefix, base_url=server.base_url, slots=SLOTS, device_slots=SLOTS + 1)
        async with Stage(StageOptions(tmp_path_factory.mktemp("leaks"), text, "kafka")) as stage:
            yield Scripted(stage, server)


class _Storm:
    """Chats that fail, are left, come too late, are evicted, or are no chats at all."""

    def __init__(self, fleet: Scripted) -> None:
        self._url = f"{fleet.stage.url}/v1/chat/completions"
        self._draw = random.Random(SEED)
        self._client = httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False)
        self.markers: list[str] = []

    async def play(self) -> None:
        calls = [self._post(script, stream=stream) for script in FAULTS for stream in (False, True)]
        calls += [self._bad(content) for content in BAD_BODIES]
        slow = {"text": "one two three four", "chunks": 4, "chunk_interval_s": 0.3}
        calls += [self._post(slow, stream=n % 2 == 0, leaves_s=0.2 * n) for n in range(8)]
        calls += [self._post(slow, stream=n % 2 == 0, deadline_ms=150 * n) for n in range(1, 9)]
        batch = {"text": "not so urgent", "delay_s": 1.0}
        calls += [self._post(batch, stream=False, priority="batch") for _ in range(3 * SLOTS)]
        self._draw.shuffle(calls)
        async with self._client:
            await asyncio.gather(*calls)

    async def _post(
        self,
        script: dict[str, Any],
        *,
        stream: bool,
        leaves_s: float | None = None,
        deadline_ms: int | None = None,
        priority: str = "interactive",
    ) -> None:
        marker = new_marker()
        self.markers.append(marker)
        headers = {"x-request-id": marker, "x-chimera-priority": priority}
        if deadline_ms is not None:
            headers["x-chimera-deadline-ms"] = str(deadline_ms)
        await asyncio.sleep(self._draw.random() * 4.0)
        try:
            async with asyncio.timeout(leaves_s):
                await self._client.post(self._url, json=body(marker, script, stream=stream), headers=headers)
        except TimeoutError:
            pass  # the client hangs up

    async def _bad(self, content: bytes) -> None:
        answer = await self._client.post(self._url, content=content)
        assert 400 <= answer.status_code < 500


async def _figures(fleet: Scripted) -> dict[str, float]:
    """Everything that counts what is held now, as the metrics of every process say."""
    stage = fleet.stage
    found: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        for name in ("ingress", "worker-scripted"):
            url = stage.services[name].spec.ready_url.replace("/readyz", "/metrics")
            for family in text_string_to_metric_families((await client.get(url)).text):
                for sample in family.samples:
                    if sample.name in HELD and sample.labels.get("kind") != "granted":
                        found[f"{name} {sample.name} {sorted(sample.labels.values())}"] = sample.value
        state = (await client.get(f"{fleet.server.root_url}/state")).json()
    return found | {"model server in flight": state["in_flight"], "model server busy": state["busy"]}


HELD = {
    "llm_requests_in_flight",
    "chimera_worker_in_flight",
    "chimera_worker_held",
    "chimera_backend_tokens_in_flight",
    "chimera_backend_connections_in_use",
    "chimera_device_slots",
}


async def _ends(fleet: Scripted) -> set[str]:
    """How tries of the pool have ended, as its worker counts them."""
    url = fleet.stage.services["worker-scripted"].spec.ready_url.replace("/readyz", "/metrics")
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        families = text_string_to_metric_families((await client.get(url)).text)
    samples = [sample for family in families for sample in family.samples if sample.value]
    return {sample.labels["end"] for sample in samples if sample.name == "chimera_worker_tries_total"}


async def test_q13_a_storm_of_failures_leaves_nothing_held(fleet: Scripted) -> None:
    storm = _Storm(fleet)
    await storm.play()
    shown: dict[str, float] = {}

    async def empty() -> bool | None:
        shown.clear()
        shown.update(await _figures(fleet))
        return True if not any(shown.values()) else None

    assert await _ends(fleet) >= {"succeeded", "evicted", "cancelled", "server_error"}
    try:
        await until(empty, "nothing held any more")
    except AssertionError:
        pytest.fail(f"still held: { {name: value for name, value in shown.items() if value} }")
    assert {name.split()[1] for name in shown} >= HELD
    await _every_try_has_its_row(fleet, storm.markers)
    await _every_slot_is_there(fleet)


async def _every_try_has_its_row(fleet: Scripted, markers: list[str]) -> None:
    """What was taken at the model server was given back in the ledger; no row of another try is open."""
    tries = {one.attempt for one in fleet.server.log() if one.marker in markers}

    async def settled() -> bool | None:
        evidence = await everything(fleet)
        ended = {attempt for attempt, row in evidence.ledger.items() if row["state"] == "ended"}
        return True if tries <= ended and ended == evidence.ledger.keys() else None

    await until(settled, "an ended ledger row of every try")
    evidence = await everything(fleet)
    assert evidence.terminals.keys() == evidence.accepted.keys()


async def _every_slot_is_there(fleet: Scripted) -> None:
    """All slots of the pool are at work at once."""
    markers = [new_marker() for _ in range(SLOTS)]
    pace = {"chunks": 4, "chunk_interval_s": 0.5}
    texts = [f"{marker} is at work" for marker in markers]
    calls = [
        ask(fleet.stage.url, body(marker, pace | {"text": text}))
        for marker, text in zip(markers, texts, strict=True)
    ]
    chats = [asyncio.create_task(call) for call in calls]

    async def full() -> bool | None:
        return True if len(await fleet.server.running_attempts()) == SLOTS else None

    await until(full, "all slots at work")
    assert [text_of(answer) for answer in await asyncio.gather(*chats)] == texts
