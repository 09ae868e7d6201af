"""Lanes of a pool without workers: read by one worker of another pool, moved, parked or ended, given back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.headers import TaskHeaders
from schemas.messages import AttemptStarted, TaskFailed, TaskParked, TaskSucceeded
from schemas.topics import Priority
from services.adapters.model_backends.openai import OpenAIBackend
from services.core.reroute import RerouteLaw
from services.ports import InRecord
from tests.fakes.bus_readers import FakeGroupSource
from tests.integration.test_worker_beats import beats
from tests.integration.two_pools import QUICK, SPARE, moved, pools_of, spare
from tests.integration.worker_rig import NAMES, POOL, WorkerRig, scripted, until


class BreaksOnce(FakeGroupSource):
    """Its first poll is a fault that nobody foresaw."""

    broken = False

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        if not BreaksOnce.broken:
            BreaksOnce.broken = True
            raise RuntimeError("no bus error")
        return await super().poll(timeout_ms=timeout_ms, max_records=max_records, partitions=partitions)


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


async def test_an_adopted_lane_that_broke_is_adopted_again(
    two: WorkerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = two._source

    def source(pool: str, priority: Priority) -> FakeGroupSource:
        if pool != POOL.name:
            return whole(pool, priority)
        lane, group = NAMES.lane(pool, priority), NAMES.lane_group(pool, priority)
        return BreaksOnce(two.bus, topic=lane, group=group)

    monkeypatch.setattr(two, "_source", source)
    monkeypatch.setattr(BreaksOnce, "broken", False)
    await two.work("b1", pool=spare(two))
    await until(lambda: BreaksOnce.broken)
    assert await pools_of(two, [await two.submit(model="auto")]) == {"spare": 1}
