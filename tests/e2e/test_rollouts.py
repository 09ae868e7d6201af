"""Workers and ingresses are replaced, added and taken away under load: nobody notices (O4, Q12)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.e2e.balancer import Balancer
from tests.e2e.fault_fleet import CLIENT_TIMEOUT_S, WORKER, body, gone, pid_of, ready, text_of
from tests.e2e.staged import Scripted, new_marker, scripted_fleet
from tests.e2e.steady_load import LONG_S, steady_load

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOTS = 12
DRAIN_S = "20"  # many times what the longest chat takes
SECOND = "worker-second"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    """One fleet for this module; each test leaves what it found: one worker more and one ingress at most."""
    environment = {"CHIMERA_DRAIN_S": DRAIN_S}
    workdir = tmp_path_factory.mktemp("rollouts")
    async with scripted_fleet(workdir, "kafka", slots=SLOTS, environment=environment) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def one_worker(fleet: Scripted) -> AsyncIterator[None]:
    """What a test leaves of the workers becomes one, under the name that the others know."""
    yield
    services = fleet.stage.services
    kept, *others = [name for name in services if name.startswith("worker-")]
    for name in others:
        await services.pop(name).stop()
    services[WORKER] = services.pop(kept)


async def _stop(fleet: Scripted, name: str) -> set[str]:
    """SIGTERM, and the process is awaited; returns what the model server worked on at that moment."""
    at_work = {str(one.marker) for one in await fleet.server.running_attempts() if one.marker}
    await fleet.stage.services.pop(name).stop()
    return at_work


@pytest.mark.usefixtures("one_worker")
async def test_o4_workers_are_replaced_one_by_one_and_no_chat_notices(fleet: Scripted) -> None:
    stage = fleet.stage
    await stage.start_another(WORKER, SECOND)
    spec_of = WORKER
    async with steady_load(fleet) as load:
        await asyncio.sleep(LONG_S)
        old = {str(pid_of(fleet, name)) for name in (WORKER, SECOND)}
        at_work: set[str] = set()
        for leaving, coming in ((SECOND, "worker-third"), (WORKER, "worker-fourth")):
            await stage.start_another(spec_of, coming)
            at_work |= await _stop(fleet, leaving)
            spec_of = coming
        await asyncio.sleep(LONG_S)
    evidence = await load.all_answered_once()
    by = load.workers(evidence)
    assert {marker for marker in at_work if old & set(by[marker].split("-"))} != set()  # drained, not moved
    late = [marker for marker in list(load.chats)[-5:] if old & set(by[marker].split("-"))]
    assert late == []


@pytest.mark.usefixtures("one_worker")
async def test_o4_a_pool_grows_and_shrinks_by_one_under_load(fleet: Scripted) -> None:
    async with steady_load(fleet) as load:
        await asyncio.sleep(LONG_S / 2)
        await fleet.stage.start_another(WORKER, SECOND)
        joined = str(pid_of(fleet, SECOND))
        await asyncio.sleep(2 * LONG_S)
        at_work = await _stop(fleet, SECOND)
        await asyncio.sleep(LONG_S / 2)
    by = load.workers(await load.all_answered_once())
    assert {marker for marker in at_work if joined in by[marker].split("-")} != set()


async def test_an_ingress_behind_a_balancer_restarts_and_no_answer_is_lost(fleet: Scripted) -> None:
    port = await fleet.stage.start_another("ingress", "ingress-second")
    try:
        async with Balancer([fleet.stage.port, port]) as balancer:
            async with steady_load(fleet, lambda: balancer.url) as load:
                await asyncio.sleep(LONG_S / 2)
                pid = pid_of(fleet, "ingress")
                balancer.take_out(fleet.stage.port)  # as whoever restarts it does first
                os.kill(pid, signal.SIGTERM)
                await gone(pid)
                await ready(fleet, "ingress")
                balancer.put_back(fleet.stage.port)
                await asyncio.sleep(LONG_S / 2)
            await load.all_answered_once()
            assert balancer.connections[fleet.stage.port] > 0
            assert balancer.connections[port] > 0
    finally:
        await fleet.stage.services.pop("ingress-second").stop()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_q12_a_call_with_a_key_outlives_its_ingress(fleet: Scripted, stream: bool) -> None:
    """Begun at one that is killed, repeated at the other: it joins the try that runs; a third is replayed."""
    port = await fleet.stage.start_another("ingress", "ingress-second")
    other = f"http://127.0.0.1:{port}"
    marker = new_marker()
    fields = body(marker, {"text": marker, "delay_s": LONG_S}, stream=stream)
    try:
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False) as client:

            async def post(url: str) -> httpx.Response:
                headers = {"x-request-id": marker, "idempotency-key": marker}
                return await client.post(f"{url}/v1/chat/completions", json=fields, headers=headers)

            first = asyncio.create_task(post(fleet.stage.url))
            await fleet.at_work(marker)
            os.kill(pid_of(fleet, "ingress"), signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await first
            joined, replayed = await post(other), await post(other)
            for answer in (joined, replayed):
                assert marker in (answer.text if stream else text_of(answer))
            await ready(fleet, "ingress")
            assert marker in (await post(fleet.stage.url)).text
    finally:
        await fleet.stage.services.pop("ingress-second").stop()
    assert [one.outcome for one in fleet.attempts(marker)] == ["ok"]
    assert [row["verdict"] for row in await fleet.ledger(marker)] == ["outcome"]
