"""Tasks that are better off elsewhere: tails, drained pools, pools without a backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.model_server.process import ModelServerProcess
from schemas.codec import encode, message_headers
from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode, PoolOrder
from schemas.messages import AttemptFailed, Failure, RunTask, TaskFailed, TaskSucceeded
from schemas.payload import Payload
from services.adapters.model_backends.openai import OpenAIBackend
from services.ports import BusError, OutRecord
from services.worker_pools.backend_record import Lease
from services.worker_pools.backends import Heard
from tests.integration.two_pools import QUICK, SPARE, moved, pools_of, runs, spare
from tests.integration.worker_rig import NAMES, POOL, WorkerRig, scripted, until

SLOW: dict[str, Any] = {"delay_s": 1.0}


async def order(rig: WorkerRig, mode: PoolMode) -> None:
    message = PoolOrder(sent_ms=1, pool=POOL.name, mode=mode)
    await rig.publisher.start()
    record = OutRecord(NAMES.fleet, message.key.encode(), encode(message), message_headers(message), 0)
    await rig.publisher.send(record, timeout_s=5)


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
    steady = replace(two.pool, adaptive=False)  # fewer slots after a refusal would make a tail
    backends = (await two.work("a1", pool=steady)).worker.backends()
    await two.work("b1", pool=spare(two))
    for hold_s, pool in ((0.4, POOL.name), (30.0, "spare")):
        run = RunTask(task_id="refused", kind="chat", pool=POOL.name, arrived_ms=0, body=Payload(inline={}))
        lease = backends.take(run, {}, None)
        assert isinstance(lease, Lease)
        tasks = [await two.submit(model="auto") for _ in range(POOL.slots)]
        refused = Failure(kind=FailureKind.RATE_LIMITED, message="not now", retry_after_s=hold_s)
        backends.ended(lease, refused, Heard())
        assert await pools_of(two, tasks) == {pool: POOL.slots}


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
