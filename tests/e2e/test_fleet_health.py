"""Workers that die, stop and stall, and pools that are paused: processes of their own, on Apache Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from loadtest.kills.evidence import read_all
from schemas.headers import LATE
from services.core.fleet_table import DEAD_AFTER_S
from tests.e2e.command import chimera, run_chimera
from tests.e2e.fault_fleet import WORKER, ask, body, gone, pid_of, ready, text_of, unwritable_results
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 120.0  # of every chat here
POOL = "scripted"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    async with scripted_fleet(tmp_path_factory.mktemp("health"), "kafka") as running:
        yield running


async def worker_of(fleet: Scripted) -> str:
    """The id of the worker that runs now."""
    url = fleet.stage.services[WORKER].spec.ready_url.replace("/readyz", "/healthz")
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        return str((await client.get(url)).json()["worker"])


async def pool(fleet: Scripted) -> dict[str, Any]:
    found: list[dict[str, Any]] = await chimera(fleet.stage, "pools")
    return next(shown for shown in found if shown["pool"] == POOL)


async def dead(fleet: Scripted, worker: str) -> dict[str, Any]:
    """What `chimera pools` says of a worker, once it counts as dead."""

    async def look() -> dict[str, Any] | None:
        return next((one for one in (await pool(fleet))["dead"] if one["worker"] == worker), None)

    return await until(look, f"{worker} is dead")


async def alive(fleet: Scripted, worker: str) -> None:
    async def look() -> bool | None:
        shown = await pool(fleet)
        dead_ones = {one["worker"] for one in shown["dead"]}
        return True if shown["workers"]["ready"] >= 1 and worker not in dead_ones else None

    await until(look, f"{worker} is alive again")


async def row(fleet: Scripted, worker: str, state: str) -> dict[str, Any]:
    """A ledger row of the worker in that state, once there is one."""
    engine = create_async_engine(fleet.stage.database_url)
    query = text("SELECT * FROM ledger WHERE worker = :worker ORDER BY started_ms DESC LIMIT 1")

    async def look() -> dict[str, Any] | None:
        async with engine.connect() as connection:
            found = (await connection.execute(query, {"worker": worker})).mappings().first()
        return dict(found) if found is not None and found["state"] == state else None

    try:
        return await until(look, f"a try of {worker} that is {state}")
    finally:
        await engine.dispose()


async def announced(fleet: Scripted) -> set[str]:
    """Attempts whose start an ingress was told of."""
    records = await read_all(
        fleet.stage.bootstrap_servers, [fleet.names.results], fleet.stage.fleet.partitions
    )
    heads = [(dict(record.headers), record.value) for record in records]
    return {
        orjson.loads(value)["run"]["attempt"]
        for headers, value in heads
        if headers.get("type") == b"AttemptStarted" and LATE not in headers
    }


@asynccontextmanager
async def streaming(fleet: Scripted, marker: str) -> AsyncIterator[asyncio.Task[list[Any]]]:
    """A stream of which a client has content, and which would go on for longer than the deadline."""
    begun = asyncio.Event()

    async def follow() -> list[Any]:
        events: list[Any] = []
        script = {"text": "word " * 4000, "chunks": 2000, "chunk_interval_s": 0.1}
        async with (
            httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client,
            client.stream(
                "POST",
                f"{fleet.stage.url}/v1/chat/completions",
                json=body(marker, script, stream=True),
                headers={"x-request-id": marker},
            ) as answer,
        ):
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    events.append(orjson.loads(line.removeprefix("data: ")))
                    begun.set()
        return events

    task = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(DEADLINE_S / 2):
            await begun.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_stopped_worker_is_dead_and_its_end_is_booked_when_it_comes_back(fleet: Scripted) -> None:
    """Nobody else is there to take over: only its silence on `fleet` can say it."""
    worker, marker = await worker_of(fleet), new_marker()
    pid = pid_of(fleet, WORKER)
    async with streaming(fleet, marker) as stream:
        await row(fleet, worker, "open")
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(10 * DEAD_AFTER_S):
                events = await stream
            assert events[-1]["error"]["code"] == "stream_interrupted"
            assert (await dead(fleet, worker))["why"] == "silent"
            lost = await row(fleet, worker, "lost")
        finally:
            os.kill(pid, signal.SIGCONT)
    await alive(fleet, worker)
    ended = await row(fleet, worker, "ended")
    assert ended["attempt"] == lost["attempt"]
    await ready(fleet, WORKER)
    assert text_of(await ask(fleet.stage.url, body(after := new_marker()))) == after


async def test_a_killed_workers_stream_ends_its_try_is_lost_and_others_go_on(fleet: Scripted) -> None:
    worker, marker = await worker_of(fleet), new_marker()
    pid = pid_of(fleet, WORKER)
    async with streaming(fleet, marker) as stream:
        await row(fleet, worker, "open")
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        async with asyncio.timeout(10 * DEAD_AFTER_S):
            events = await stream
        assert events[-1]["error"]["code"] == "stream_interrupted"
    assert (await dead(fleet, worker))["why"] == "silent"
    assert (await row(fleet, worker, "lost"))["verdict"] == "lost"
    await ready(fleet, WORKER)
    other = await worker_of(fleet)
    assert other != worker
    await alive(fleet, other)
    assert text_of(await ask(fleet.stage.url, body(after := new_marker()))) == after


async def test_a_stream_ends_though_its_try_was_never_announced(fleet: Scripted) -> None:
    """Its first chunk says whose it is; the next worker's try of the same task would be no reason to end."""
    await ready(fleet, WORKER)
    pid, marker = pid_of(fleet, WORKER), new_marker()
    async with AsyncExitStack() as stack:
        async with unwritable_results(fleet):
            stream = await stack.enter_async_context(streaming(fleet, marker))
            attempt = (await fleet.at_work(marker)).attempt
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
        async with asyncio.timeout(10 * DEAD_AFTER_S):
            events = await stream
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert attempt not in await announced(fleet)
    await ready(fleet, WORKER)
    assert text_of(await ask(fleet.stage.url, body(after := new_marker()))) == after


async def test_r4_a_worker_whose_model_server_is_silent_is_dead_though_it_beats(fleet: Scripted) -> None:
    """Its guards end each try and it begins another: silence adds up all the same."""
    await ready(fleet, WORKER)
    worker = await worker_of(fleet)
    chat = asyncio.create_task(ask(fleet.stage.url, body(new_marker(), {"ttft_s": 300})))
    try:
        found = await dead(fleet, worker)
        assert found["why"] == "no progress"
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            health = await client.get(
                fleet.stage.services[WORKER].spec.ready_url.replace("/readyz", "/healthz")
            )
        assert health.status_code == httpx.codes.OK, "its process is well"
    finally:
        answer = await chat
    assert answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    await alive(fleet, worker)
    assert text_of(await ask(fleet.stage.url, body(after := new_marker()))) == after


async def test_a_pool_is_paused_and_resumed_by_command(fleet: Scripted) -> None:
    await ready(fleet, WORKER)
    shown = await pool(fleet)
    assert (shown["mode"], shown["workers"]["ready"], shown["slots"]) == ("running", 1, 32)
    await chimera(fleet.stage, "pools", "pause", POOL, "--reason", "new [weights]")
    ready_url = fleet.stage.services[WORKER].spec.ready_url

    async def gate() -> list[str]:
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            answer = await client.get(ready_url)
            assert answer.status_code == httpx.codes.OK, "a paused worker is well"
            return list(answer.json()["gate"])

    async def closed() -> bool | None:
        return True if await gate() == ["paused"] else None

    await until(closed, "the worker knows that its pool is paused")
    chat = asyncio.create_task(ask(fleet.stage.url, body(marker := new_marker())))

    async def queued() -> dict[str, Any] | None:
        found = await pool(fleet)
        return found if found["queued"] == 1 else None

    waiting = await until(queued, "one task waits")
    assert (waiting["mode"], waiting["reason"], waiting["in_flight"]) == ("paused", "new [weights]", 0)
    assert waiting["queue_seconds"] > 0
    code, out, _ = await run_chimera(fleet.stage, "pools")
    assert code == 0
    assert f"paused: {POOL}, by " in out
    assert ": new [weights]" in out
    assert not chat.done()
    await chimera(fleet.stage, "pools", "resume", POOL)
    assert text_of(await chat) == marker
    assert (await pool(fleet))["mode"] == "running"


async def test_orders_to_nobody_say_who_is_there(fleet: Scripted) -> None:
    code, _, error = await run_chimera(fleet.stage, "pools", "pause", "scriptet")
    assert code == 1
    assert "no pool 'scriptet': expected one of scripted" in error
    nowhere = ("pools", "--bootstrap-servers", "127.0.0.1:9", "--state-dir", "/nonexistent")
    code, _, error = await run_chimera(fleet.stage, *nowhere)
    assert code == 1
    assert "nothing answers at 127.0.0.1:9" in error
