"""Where the ingress sends a task by what `fleet` says, and what the task carries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.core.placement import stable_partition
from services.ingress.settings import IngressKnobs
from tests.chat_bodies import answer_of, ask
from tests.ingress_bench import FLEET, Bench, LaneTask, eventually, ingress_bench
from tests.integration.test_ingress_dead_workers import beat, beating

PARTITIONS = FLEET.partitions


def owns(*partitions: int, pool: str = "chat-fast") -> dict[str, list[int]]:
    return {f"{FLEET.prefix}tasks.{pool}.interactive": list(partitions)}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    knobs, draws = IngressKnobs(trust_tenant_header=True), random.Random(1).random
    async with ingress_bench(tmp_path, knobs=knobs, random_unit=draws) as made:
        await eventually(made.ingress.view.caught_up.is_set)
        yield made


async def sent(bench: Bench, client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> LaneTask:
    """The task of a call; its answer is not waited for."""
    named = {f"x-chimera-{name.replace('_', '-')}": value for name, value in headers.items()}
    call = asyncio.create_task(client.post("/v1/chat/completions", json=body, headers=named))
    task = await bench.next_task()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    return task


async def test_a_task_says_what_it_needs_what_it_weighs_and_whose_it_is(bench: Bench) -> None:
    async with bench.http() as client:
        tool = {"type": "function", "function": {"name": "f"}}
        task = await sent(
            bench,
            client,
            ask(model="auto", tools=[tool], max_tokens=40),
            affinity="sticky",
            session_id="s1",
            data_policy="local",
            tenant="acme",
        )
    said = task.task
    assert said.features == ("tools",)
    assert said.output_tokens == 40
    assert said.input_tokens > 0
    assert (said.affinity, said.session_id, said.data_policy) == ("sticky", "s1", "local")
    assert (said.tenant, task.headers.tenant) == ("acme", "acme")
    assert task.headers.tokens == said.input_tokens / 4 + 40


async def test_a_malformed_tenant_is_refused_and_an_untrusted_one_ignored(
    bench: Bench, tmp_path: Path
) -> None:
    async with bench.http() as client:
        refused = await client.post(
            "/v1/chat/completions", json=ask(), headers={"x-chimera-tenant": "no spaces"}
        )
    assert refused.status_code == httpx.codes.BAD_REQUEST
    assert refused.json()["error"]["param"] == "x-chimera-tenant"
    async with ingress_bench(tmp_path / "other") as plain, plain.http() as client:
        assert (await sent(plain, client, ask(), tenant="no spaces")).task.tenant == "default"


async def test_tasks_go_to_ready_workers_and_to_the_shorter_queue(bench: Bench) -> None:
    busy: dict[str, Any] = {"owns": owns(0, 1), "in_flight": 2, "queue_seconds": 900.0}
    async with bench.http() as client, beating(bench, "w1", **busy):
        async with beating(bench, "w2", owns=owns(2, 3), in_flight=0):
            body = ask(model="chat-fast")
            chosen = [(await sent(bench, client, body)).partition for _ in range(12)]
            assert chosen.count(2) + chosen.count(3) >= 8  # both of two drawn are w1's once in six
        await beat(bench, "w2", owns=owns(2, 3), state="draining")
        await eventually(lambda: bench.ingress.view.table.ready("chat-fast", bench.ingress.view.now_s()))
        await asyncio.sleep(0.1)  # a snapshot's life
        chosen = [(await sent(bench, client, body)).partition for _ in range(6)]
        assert set(chosen) <= {0, 1}


async def test_nothing_is_sent_to_a_partition_that_is_none(bench: Bench) -> None:
    """Who says that he owns one more than there are is no owner of it: its record could not be written."""
    async with bench.http() as client, beating(bench, "w1", owns=owns(-1, 0, PARTITIONS, 99), in_flight=0):
        await eventually(lambda: bench.ingress.view.table.ready("chat-fast", bench.ingress.view.now_s()))
        await asyncio.sleep(0.1)  # a snapshot's life
        chosen = [(await sent(bench, client, ask(model="chat-fast"))).partition for _ in range(8)]
    assert set(chosen) <= set(range(PARTITIONS))


async def test_a_session_stays_soft_until_its_owner_is_busy_sticky_always(bench: Bench) -> None:
    own = stable_partition("s1", PARTITIONS)
    others = [partition for partition in range(PARTITIONS) if partition != own]
    body = ask(model="chat-fast")
    async with bench.http() as client, beating(bench, "w2", owns=owns(*others), in_flight=0):
        async with beating(bench, "w1", owns=owns(own), in_flight=0):
            soft = [(await sent(bench, client, body, session_id="s1")).partition for _ in range(3)]
            assert set(soft) == {own}
        async with beating(bench, "w1", owns=owns(own), in_flight=2, queue_seconds=900.0):
            await asyncio.sleep(0.3)
            soft = [(await sent(bench, client, body, session_id="s1")).partition for _ in range(6)]
            assert set(soft) <= set(others)  # of any two drawn one is better
            sticky = {"session_id": "s1", "affinity": "sticky"}
            kept = [(await sent(bench, client, body, **sticky)).partition for _ in range(3)]
            assert set(kept) == {own}


async def test_auto_leaves_out_a_pool_whose_workers_are_dead_or_busy(bench: Bench) -> None:
    async with bench.http() as client, beating(bench, "s1", pool="chat-strong", in_flight=0):
        task = await sent(bench, client, ask(model="auto"))  # chat-fast would be quicker, had it anybody
        assert task.task.pool == "chat-strong"
        async with beating(bench, "f1", in_flight=0):
            await asyncio.sleep(0.1)
            assert (await sent(bench, client, ask(model="auto"))).task.pool == "chat-fast"
            named = await sent(bench, client, ask(model="chat-strong"))
            assert named.task.pool == "chat-strong"


async def test_a_pinned_pool_without_a_worker_holds_its_task(bench: Bench) -> None:
    async with bench.http() as client, beating(bench, "s1", pool="chat-strong", in_flight=0):
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask(model="chat-fast")))
        task = await bench.next_task()
        assert task.task.pool == "chat-fast"
        await bench.succeed(task, answer_of("late"))
        assert (await call).status_code == httpx.codes.OK


async def test_with_a_fallback_the_task_goes_there_at_once(tmp_path: Path) -> None:
    fast, strong = FLEET.pools
    fleet = replace(FLEET, pools=(replace(fast, fallbacks=("chat-strong",)), strong))
    async with (
        ingress_bench(tmp_path, fleet=fleet) as made,
        made.http() as client,
        beating(made, "s1", pool="chat-strong", in_flight=0),
    ):
        task = await sent(made, client, ask(model="chat-fast"))
        assert task.task.pool == "chat-strong"
