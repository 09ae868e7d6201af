"""Tasks that are better off elsewhere: tails, drained pools, pools without a backend or without a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.codec import encode, message_headers
from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode, PoolOrder
from schemas.headers import TaskHeaders, to_text
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    Failure,
    RunTask,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
)
from schemas.payload import Payload
from services.adapters.model_backends.openai import OpenAIBackend
from services.core.fleet import Pool
from services.core.reroute import RerouteLaw
from services.ports import BusError, OutRecord
from services.worker_pools.backend_record import Lease
from services.worker_pools.backends import Heard
from tests.integration.test_worker_beats import beats
from tests.integration.worker_rig import NAMES, POOL, WorkerRig, scripted, until

SLOW: dict[str, Any] = {"delay_s": 1.0}
SPARE = replace(POOL, name="spare", model="spare-1", external=True)
QUICK: dict[str, Any] = {"beat_s": 0.1, "adopt_after_s": 0.4, "adopt_look_s": 0.1}


@pytest.fixture
async def two(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    """Pools `chat-fast` and `spare` in front of one model server; no worker yet."""
    client = OpenAIBackend(slots=8)
    urls = (server.root_url,)
    rig = WorkerRig(
        client, tmp_path, replace(POOL, base_urls=urls), (replace(SPARE, base_urls=urls),), **QUICK
    )
    try:
        yield rig
    finally:
        await rig.close()
        await client.aclose()


def spare(rig: WorkerRig) -> Pool:
    return rig.fleet.pools[1]


def moved(rig: WorkerRig, pool: str) -> list[TaskHeaders]:
    """Headers of what was moved to the interactive lane of a pool."""
    records = rig.bus.records(NAMES.lane(pool, "interactive"))
    headers = [TaskHeaders.from_text(to_text(record.headers)) for record in records]
    return [one for one in headers if one.hops]


async def order(rig: WorkerRig, mode: PoolMode) -> None:
    message = PoolOrder(sent_ms=1, pool=POOL.name, mode=mode)
    await rig.publisher.start()
    record = OutRecord(NAMES.fleet, message.key.encode(), encode(message), message_headers(message), 0)
    await rig.publisher.send(record, timeout_s=5)


async def pools_of(rig: WorkerRig, tasks: list[str]) -> Counter[str]:
    ends = [await rig.end(task_id) for task_id in tasks]
    assert all(isinstance(end, TaskSucceeded) for end in ends), ends
    return Counter(end.run.pool for end in ends if end.run is not None)


def runs(rig: WorkerRig, task_id: str) -> list[str]:
    """Who tried it."""
    started = [m.run for m in rig.results(task_id) if isinstance(m, AttemptStarted)]
    ended = [m.run for m in rig.results(task_id) if isinstance(m, TaskSucceeded | AttemptFailed)]
    return list(dict.fromkeys(run.attempt for run in started + ended))


async def test_a_busy_worker_hands_its_tail_to_a_free_one_of_its_pool(two: WorkerRig) -> None:
    await two.work("w1")
    await two.work("w2")
    tasks = [await two.submit(scripted(**SLOW), partition=0, model="auto") for _ in range(16)]
    ends = [await two.end(task_id) for task_id in tasks]
    by = Counter(end.run.worker for end in ends if isinstance(end, TaskSucceeded))
    assert set(by) == {"w1", "w2"}
    assert sum(by.values()) == 16
    gone = moved(two, POOL.name)
    assert gone
    assert {headers.hops for headers in gone} == {1}
    assert all(len(runs(two, task_id)) == 1 for task_id in tasks)


async def test_a_sticky_session_waits_for_its_own_worker(two: WorkerRig) -> None:
    await two.work("w1")
    await two.work("w2")
    sticky: dict[str, Any] = {"session_id": "s", "affinity": "sticky", "model": "auto"}
    tasks = [await two.submit(scripted(delay_s=0.4), partition=0, **sticky) for _ in range(12)]
    ends = [await two.end(task_id) for task_id in tasks]
    assert len({end.run.worker for end in ends if end.run is not None}) == 1
    assert moved(two, POOL.name) == []


async def test_what_waits_in_a_drained_pool_moves_and_what_may_not_waits(two: WorkerRig) -> None:
    await two.work("a1")
    await two.work("b1", pool=spare(two))
    running = [await two.submit(scripted(delay_s=2.0), model="auto") for _ in range(4)]
    for task_id in running:
        await two.started(task_id)
    await order(two, "draining")
    waiting = [await two.submit(model="auto") for _ in range(6)]
    local = await two.submit(model="auto", data_policy="local")
    assert await pools_of(two, waiting) == {"spare": 6}
    assert await pools_of(two, running) == {POOL.name: 4}
    assert two.results(local) == []
    await order(two, "running")
    assert await pools_of(two, [local]) == {POOL.name: 1}


async def test_a_move_that_is_not_acknowledged_is_made_again_and_the_task_runs_once(two: WorkerRig) -> None:
    await two.work("a1")
    await two.work("b1", pool=spare(two))
    await order(two, "paused")
    tasks = [await two.submit(model="auto") for _ in range(6)]
    two.bus.refuse_sends(4)
    two.bus.lose_acks(8)
    while two.bus._lost_acks:  # heartbeats use them up too
        with contextlib.suppress(BusError):
            await order(two, "draining")
        await asyncio.sleep(0.02)
    assert await pools_of(two, tasks) == {"spare": 6}
    await two.commits_reach(6)
    assert all(len(runs(two, task_id)) == 1 for task_id in tasks)


async def test_what_waits_in_a_paused_pool_stays(two: WorkerRig) -> None:
    paused = await two.work("a1")
    await two.work("b1", pool=spare(two))
    await order(two, "paused")
    await until(lambda: "paused" in paused.worker.gate())
    task_id = await two.submit(model="auto")
    await two.commits_reach(0)
    await asyncio.sleep(0.5)  # ten ticks
    assert moved(two, "spare") == []
    await order(two, "running")
    assert await pools_of(two, [task_id]) == {POOL.name: 1}


async def test_without_a_backend_the_next_try_and_what_waits_go_elsewhere(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    client = OpenAIBackend(slots=8)
    gone = replace(POOL, base_urls=("http://127.0.0.1:9",), breaker=replace(POOL.breaker, min_calls=1))
    there = replace(SPARE, base_urls=(server.root_url,))
    rig = WorkerRig(client, tmp_path, gone, (there,), **QUICK)
    try:
        await rig.work("b1", pool=there)
        await rig.work("a1")
        tasks = [await rig.submit(model="auto") for _ in range(8)]
        assert await pools_of(rig, tasks) == {"spare": 8}
        said = [m for m in rig.of(AttemptFailed) if m.next == "moved"]
        assert said  # the try that found it out
        assert {m.lane for m in said} == {NAMES.lane("spare", "interactive")}
        assert all(headers.hops == 1 for headers in moved(rig, "spare"))
    finally:
        await rig.close()
        await client.aclose()


async def test_a_short_hold_of_the_only_backend_moves_nothing_and_a_long_one_moves_all(
    two: WorkerRig,
) -> None:
    backends = (await two.work("a1")).worker.backends()
    await two.work("b1", pool=spare(two))
    for hold_s, pool in ((0.4, POOL.name), (30.0, "spare")):
        run = RunTask(task_id="refused", kind="chat", pool=POOL.name, arrived_ms=0, body=Payload(inline={}))
        lease = backends.take(run, {}, None)
        assert isinstance(lease, Lease)
        tasks = [await two.submit(model="auto") for _ in range(6)]
        refused = Failure(kind=FailureKind.RATE_LIMITED, message="not now", retry_after_s=hold_s)
        backends.ended(lease, refused, Heard())
        assert await pools_of(two, tasks) == {pool: 6}


async def test_what_cannot_start_in_time_is_forwarded_when_it_comes(two: WorkerRig) -> None:
    slow = replace(two.pool, prior_seconds=100.0)
    await two.work("a1", pool=slow)
    await two.work("b1", pool=spare(two))
    blockers = [await two.submit(scripted(delay_s=3.0), model="fast-1") for _ in range(6)]
    await two.started(blockers[0])
    urgent = await two.submit(model="auto", deadline_s=20)
    assert await pools_of(two, [urgent]) == {"spare": 1}
    await pools_of(two, blockers)


async def test_what_is_sure_to_be_late_is_told_so_when_it_comes(two: WorkerRig) -> None:
    """Only with times that were seen, and behind work of its own tenant: another's is not in its way."""
    await two.work("a1")
    named: dict[str, Any] = {"model": "fast-1"}
    for _ in range(3):
        await two.end(await two.submit(scripted(delay_s=0.3), **named))
    waiting = [await two.submit(scripted(delay_s=1.0), deadline_s=600, **named) for _ in range(120)]
    await two.started(waiting[0])
    await asyncio.sleep(0.3)  # a few ticks
    late = await two.submit(deadline_s=2, **named)
    other = await two.submit(deadline_s=2, headers={"tenant": "other"}, **named)
    end = await two.end(late)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.DEADLINE
    assert "cannot begin before the deadline" in end.failure.message
    end = await two.end(other)
    assert isinstance(end, TaskSucceeded) or "cannot begin" not in end.failure.message


# adoption


async def test_the_lane_of_a_pool_without_workers_is_adopted_and_given_back(two: WorkerRig) -> None:
    await two.work("b1", pool=spare(two))
    group = two.bus._group(NAMES.lane_group(POOL.name, "interactive"), NAMES.lane(POOL.name, "interactive"))
    tasks = [await two.submit(model="auto", partition=k % 2) for k in range(6)]
    local = await two.submit(model="auto", data_policy="local")
    assert await pools_of(two, tasks) == {"spare": 6}
    parked = (await until(lambda: two.of(TaskParked, local)))[0]
    assert parked.envelope is not None
    assert parked.envelope.headers["hops"] == "0"
    for partition in range(2):
        await two.commits_reach(3, partition)
    own = await two.work("a1")
    await until(lambda: group.members == [own.sources["interactive"]])
    back = await two.submit(model="auto")
    assert await pools_of(two, [back]) == {POOL.name: 1}
    assert [m for m in two.results(local) if not isinstance(m, TaskParked)] == []


async def test_one_worker_adopts_and_says_so(two: WorkerRig) -> None:
    for name in ("b1", "b2", "b3"):
        await two.work(name, pool=spare(two))
    lanes = {NAMES.lane(POOL.name, priority) for priority in ("interactive", "standard", "batch")}

    def adopters() -> list[str]:
        return [name for name in ("b1", "b2", "b3") if set(beats(two, name)[-1].adopted) == lanes]

    await until(adopters)
    await asyncio.sleep(0.5)  # several looks of the others
    assert len(adopters()) == 1
    assert beats(two, adopters()[0])[-1].owns[NAMES.lane(POOL.name, "interactive")] == (0, 1)


async def test_an_orphan_that_nobody_else_may_do_fails_with_the_reason(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    client = OpenAIBackend(slots=8)
    urls = (server.root_url,)
    law = RerouteLaw(park_least_s=5.0)
    rig = WorkerRig(
        client,
        tmp_path,
        replace(POOL, base_urls=urls),
        (replace(SPARE, base_urls=urls),),
        reroute=law,
        **QUICK,
    )
    try:
        await rig.work("b1", pool=rig.fleet.pools[1])
        task_id = await rig.submit(model="auto", data_policy="local", deadline_s=4)
        end = await rig.end(task_id)
        assert isinstance(end, TaskFailed)
        assert end.failure.kind is FailureKind.NO_POOL
        assert end.failure.message.startswith(f"no worker of pool {POOL.name} is alive: spare lacks")
    finally:
        await rig.close()
        await client.aclose()


async def test_what_is_no_task_and_what_was_cancelled_leave_an_adopted_lane(two: WorkerRig) -> None:
    await two.work("b1", pool=spare(two))
    cancelled = await two.submit(model="auto")
    await two.cancel(cancelled)
    headers: list[Any] = TaskHeaders("req", 4_102_444_800_000, 0).to_wire()
    await two.raw(b"bad", b"{", headers)
    await two.raw(b"worse", b"{}", [])
    await until(lambda: len(two.dead()) == 2)
    await two.commits_reach(3)
    assert moved(two, "spare") == []
    assert two.results(cancelled) == []


async def test_a_dead_worker_s_try_is_said_to_be_lost_by_the_pool_that_takes_over(two: WorkerRig) -> None:
    await two.work("b1", pool=spare(two))
    first = await two.work("a1")
    task_id = await two.submit(
        scripted(id="lost", tries=[{"hang_after_chunks": 1}, {"text": "again"}]), model="auto"
    )
    begun = await two.started(task_id)
    await first.kill(two.bus)
    end = await two.end(task_id)
    assert isinstance(end, TaskSucceeded)
    assert end.run.pool == "spare"
    again = [m for m in two.of(AttemptStarted, task_id) if m.run.attempt != begun.run.attempt]
    assert [m.redelivered for m in again] == [True]
