"""Slots under contention: reserved ones, evictions for interactive work, and who hears of a deadline when."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, AttemptStarted, TaskFailed, TaskParked, TaskSucceeded
from services.adapters.wall_clock import WallClock
from tests.integration.worker_rig import NAMES, POOL, WorkerRig, chat, openai_rig, scripted, until

ONE = replace(POOL, slots=1)
SLOW = {"id": "evicted-once", "tries": [{"delay_s": 60.0}, {"text": "done at last"}]}


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path, ONE) as rig:
        yield rig


async def batch_at_work(rig: WorkerRig, body: Mapping[str, Any] | None = None) -> str:
    """A batch task whose try was announced."""
    task_id = await rig.submit(chat(x_script=SLOW) if body is None else body, priority="batch")
    await rig.started(task_id)
    return task_id


async def test_interactive_work_takes_the_slot_of_a_batch_task_which_runs_again_at_no_charge(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    worker = await rig.work()
    batch = await batch_at_work(rig)
    urgent = await rig.submit(chat("now"))
    assert isinstance(await rig.end(urgent), TaskSucceeded)
    end = await rig.end(batch)
    assert isinstance(end, TaskSucceeded)
    failed = await rig.failed_try(batch)
    assert (failed.next, failed.failure.kind, failed.charged) == ("local", FailureKind.EVICTED, False)
    assert end.run.attempt != failed.run.attempt
    outcomes = {record.attempt: record.outcome for record in server.log()}
    assert outcomes[failed.run.attempt] == "disconnected"
    assert worker.worker._crew.slots.in_flight == 0


async def test_the_slot_of_an_eviction_is_for_the_task_it_was_made_for(rig: WorkerRig) -> None:
    """Others of the lane and the evicted task itself wait; not one more is evicted than interactive waits."""
    running = await rig.work()
    batch = await batch_at_work(rig)
    more = [await rig.submit(chat(f"batch {n}"), priority="batch") for n in range(3)]
    urgent = await rig.submit(scripted(delay_s=0.3))
    await rig.started(urgent)
    assert not any(rig.of(AttemptStarted, task_id) for task_id in more)
    for task_id in (urgent, batch, *more):
        assert isinstance(await rig.end(task_id), TaskSucceeded)
    assert running.worker._crew.evictions.count == 1
    ended = [m.task_id for m in rig.of(TaskSucceeded)]
    assert ended == [urgent, batch, *more]  # the evicted one goes before the other batch work of its tenant


async def test_a_batch_task_evicted_three_times_runs_on(rig: WorkerRig) -> None:
    await rig.work()
    batch = await batch_at_work(rig, scripted(delay_s=1.5))
    for _ in range(3):
        assert isinstance(await rig.end(await rig.submit(chat("now"))), TaskSucceeded)
        await until(lambda: len(rig.of(AttemptStarted, batch)) == len(rig.of(AttemptFailed, batch)) + 1)
    late = await rig.submit(chat("waits"))
    assert isinstance(await rig.end(late), TaskSucceeded)
    ends = [m.task_id for m in rig.of(TaskSucceeded)]
    assert ends.index(batch) < ends.index(late)
    assert len(rig.of(AttemptFailed, batch)) == 3


async def test_a_stream_that_began_is_not_evicted(rig: WorkerRig) -> None:
    await rig.work()
    body = scripted(text="one two three", chunks=3, chunk_interval_s=0.4)
    batch = await rig.submit(body, priority="batch", stream=True)
    await until(lambda: rig.chunks(batch))
    urgent = await rig.submit(chat("waits"))
    assert isinstance(await rig.end(urgent), TaskSucceeded)
    assert not rig.of(AttemptFailed, batch)
    assert [m.task_id for m in rig.of(TaskSucceeded)] == [batch, urgent]


async def test_a_lent_task_is_not_evicted(rig: WorkerRig) -> None:
    """Its parked row holds it with this worker as holder: it could not wait here."""
    await rig.work()
    batch = await batch_at_work(rig, scripted(delay_s=1.0))
    await rig.bus.rebalance(NAMES.lane_group(POOL.name, "batch"))
    await until(lambda: rig.of(TaskParked, batch))
    urgent = await rig.submit(chat("waits"))
    assert isinstance(await rig.end(urgent), TaskSucceeded)
    assert not rig.of(AttemptFailed, batch)


async def test_nothing_is_evicted_where_the_fleet_says_so(server: ModelServerProcess, tmp_path: Path) -> None:
    async with openai_rig(server.root_url, tmp_path, ONE) as rig:
        rig.fleet = replace(rig.fleet, evict_batch=False)
        await rig.work()
        batch = await batch_at_work(rig, scripted(delay_s=0.6))
        urgent = await rig.submit(chat("waits"))
        await rig.end(urgent)
        assert not rig.of(AttemptFailed, batch)


async def test_reserved_slots_start_interactive_work_only(server: ModelServerProcess, tmp_path: Path) -> None:
    async with openai_rig(server.root_url, tmp_path, replace(POOL, slots=3, reserved_interactive=2)) as rig:
        worker = await rig.work()
        lower = [await rig.submit(scripted(delay_s=1.0), priority="standard") for _ in range(2)]
        lower.append(await rig.submit(scripted(delay_s=1.0), priority="batch"))
        await until(lambda: worker.worker.held() == 3 and worker.worker.in_flight() == 1)
        urgent = [await rig.submit(scripted(delay_s=0.3)) for _ in range(2)]
        await until(lambda: worker.worker.in_flight() == 3)
        for task_id in (*urgent, *lower):
            assert isinstance(await rig.end(task_id), TaskSucceeded)


@pytest.mark.parametrize("place", ["queued", "delayed", "ahead"])
async def test_a_deadline_is_heard_of_while_the_gate_is_closed(rig: WorkerRig, place: str) -> None:
    running = await rig.work()
    running.worker._crew.gate.hold("paused")
    headers = {"not_before_ms": 4_000_000_000_000} if place == "delayed" else {}
    task_id = await rig.submit(deadline_s=0.5, headers=headers)
    await until(lambda: running.worker.held() == 1)
    if place == "ahead":
        assert running.worker._crew.backlog.put_first(task_id)
    end = await rig.end(task_id)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.DEADLINE
    await rig.commits_reach(1)


@pytest.mark.parametrize("place", ["queued", "delayed", "ahead", "revoked"])
async def test_a_cancelled_task_is_let_go_of_wherever_it_waits(rig: WorkerRig, place: str) -> None:
    running = await rig.work()
    crew = running.worker._crew
    crew.gate.hold("paused")
    headers = {"not_before_ms": 4_000_000_000_000} if place == "delayed" else {}
    task_id = await rig.submit(headers=headers)
    await until(lambda: running.worker.held() == 1)
    if place == "ahead":
        assert crew.backlog.put_first(task_id)
    if place == "revoked":
        await running.worker.revoked("interactive", [0])  # now the queue does not have it
        assert len(crew.backlog) == 0
    await rig.cancel(task_id)
    await until(lambda: running.worker.held() == 0)
    if place == "revoked":
        running.worker.assigned("interactive")
    assert len(crew.backlog) == 0
    await rig.commits_reach(1)


async def test_a_clock_that_is_set_back_teaches_no_wrong_times(
    rig: WorkerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_s = [0.0]
    monkeypatch.setattr(WallClock, "now_s", lambda _: time.time() - back_s[0])
    running = await rig.work()
    task_id = await rig.submit(scripted(delay_s=0.3))
    await rig.started(task_id)
    back_s[0] = 3_600.0
    await rig.end(task_id)
    assert 0.2 < running.worker._crew.backlog.times.expected_s("interactive", 0) < 60
