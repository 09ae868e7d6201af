"""Kills, rebalances, drains: nothing is lost, committed early, or run twice at once (CASES Q1, Q5-Q9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, AttemptStarted, TaskFailed, TaskParked, TaskSucceeded
from services.core.done_map import SPAN
from services.ports import Commit, CommitRefused
from tests.integration.worker_rig import (
    NAMES,
    POOL,
    WorkerRig,
    chat,
    openai_rig,
    scripted,
    text_of,
    tries,
    until,
)


async def test_q6_only_contiguous_completions_are_committed(rig: WorkerRig) -> None:
    running = await rig.work()
    first = await rig.submit(scripted(hang_after_chunks=1))
    later = [await rig.submit() for _ in range(3)]
    for task_id in later:
        await rig.end(task_id)
    await until(lambda: rig.bus.commits(NAMES.lane_group(POOL.name, "interactive")).get(0))
    assert rig.committed() == 0
    # the done-map brings what was done above the watermark over to the next owner
    await running.kill(rig.bus)
    before = len(rig.results())
    await rig.work("worker-2")
    again = await until(lambda: [m for m in rig.of(AttemptStarted, first) if m.redelivered])
    assert again[0].run.worker == "worker-2"
    assert [m.task_id for m in rig.results()[before:]] == [first]


async def test_q5_work_runs_on_over_a_rebalance_and_nothing_runs_twice(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    first = await rig.work("worker-1")
    running = [
        await rig.submit(scripted(delay_s=1.0, text="done once"), partition=number % 2) for number in range(4)
    ]
    for task_id in running:
        await rig.started(task_id)
    queued = [await rig.submit(chat(f"queued {number}"), partition=number % 2) for number in range(6)]
    second = await rig.work("worker-2")
    for task_id in running + queued:
        assert isinstance(await rig.end(task_id), TaskSucceeded)
    for partition in (0, 1):
        await rig.commits_reach(5, partition)
    for task_id in running:
        (parked,) = rig.of(TaskParked, task_id)
        assert parked.holder == "worker-1"
        assert parked.envelope is not None
    assert len(server.log()) == len(running) + len(queued)
    owners = {end.run.worker for task_id in queued for end in rig.of(TaskSucceeded, task_id) if end.run}
    assert owners == {"worker-1", "worker-2"}
    await first.stop()
    await second.stop()


async def test_q5_a_holder_renews_without_the_envelope_until_the_end(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with openai_rig(server.root_url, tmp_path, renew_s=0.1) as rig:
        await rig.work()
        task_id = await rig.submit(scripted(delay_s=1.0))
        await rig.started(task_id)
        await rig.bus.rebalance(NAMES.lane_group(POOL.name, "interactive"))
        await rig.end(task_id)
        held, *renewals = rig.of(TaskParked, task_id)
        assert held.envelope is not None
        assert renewals
        assert all(renewal.envelope is None for renewal in renewals)
        assert {record.attempt for record in (held, *renewals)} == {server.log()[0].attempt}
        count = len(rig.of(TaskParked, task_id))
        later = await rig.submit(scripted(delay_s=1.0))
        await rig.started(later)
        await rig.bus.rebalance(NAMES.lane_group(POOL.name, "interactive"))
        await until(lambda: len(rig.of(TaskParked, later)) > 2)  # several times to renew have passed
        assert len(rig.of(TaskParked, task_id)) == count


@pytest.mark.parametrize("comes_first", ["cancel", "record"])
async def test_q5_a_task_that_was_swept_away_from_its_holder_still_runs(
    rig: WorkerRig, server: ModelServerProcess, comes_first: str
) -> None:
    # the sweep put its row on a lane, and a late renewal was answered with a cancel of that attempt alone
    await rig.work()
    body = tries("swept", {"hang_after_chunks": 1}, {"text": "by the swept record"})
    task_id = await rig.submit(body)
    attempt = (await rig.started(task_id)).run.attempt
    await rig.bus.rebalance(NAMES.lane_group(POOL.name, "interactive"))
    await until(lambda: rig.of(TaskParked, task_id))
    if comes_first == "record":
        await rig.submit(body, task_id=task_id)
    await rig.end(await rig.submit(chat("what came before it on the lane has been taken")))
    await rig.cancel(task_id, attempt=attempt, reason="superseded")
    assert (await rig.failed_try(task_id)).charged is False
    if comes_first == "cancel":
        await rig.submit(body, task_id=task_id)
    assert text_of(await rig.answer(task_id)) == "by the swept record"
    await rig.commits_reach(3)
    assert len(server.log()) == 3


async def test_q5_a_second_record_of_a_held_task_is_done_with_it(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    await rig.work()
    task_id = await rig.submit(scripted(delay_s=0.5))
    await rig.started(task_id)
    await rig.submit(scripted(delay_s=0.5), task_id=task_id)
    await rig.end(task_id)
    await rig.submit(scripted(delay_s=0.5), task_id=task_id)  # one that it ended a moment ago
    await rig.commits_reach(3)
    assert len(server.log()) == 1


async def test_q8_unstarted_work_goes_back_and_running_work_ends(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    first = await rig.work()
    running = [await rig.submit(scripted(delay_s=0.5)) for _ in range(POOL.slots)]
    for task_id in running:
        await rig.started(task_id)
    queued = [await rig.submit() for _ in range(3)]
    await until(lambda: first.worker.held() == POOL.slots + len(queued))
    await first.stop()
    assert all(isinstance(rig.results(task_id)[-1], TaskSucceeded) for task_id in running)
    assert all(rig.results(task_id) == [] for task_id in queued)
    assert rig.committed() == POOL.slots
    await rig.work("worker-2")
    for task_id in queued:
        assert isinstance(await rig.end(task_id), TaskSucceeded)
    assert len(server.log()) == POOL.slots + len(queued)


async def test_q8_what_outlasts_the_drain_is_parked_at_once_and_its_server_stops(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with openai_rig(server.root_url, tmp_path, drain_s=0.1) as rig:
        running = await rig.work()
        whole = await rig.submit(scripted(hang_after_chunks=1))
        streamed = await rig.submit(scripted(hang_after_chunks=1) | {"stream": True}, stream=True)
        await rig.started(whole)
        await until(lambda: rig.chunks(streamed))
        await running.stop()
        parked = rig.of(AttemptFailed, whole)[0]
        assert (parked.next, parked.charged) == ("parked", False)
        assert parked.envelope is not None
        assert parked.envelope.headers["tries"] == "0"
        assert parked.due_ms is not None
        assert parked.due_ms <= time.time() * 1000
        assert rig.of(TaskFailed, streamed)[0].failure.kind is FailureKind.INTERRUPTED
        assert rig.committed() == 2
        assert [r.outcome for r in await until(lambda: server.log()[1:] and server.log())] == [
            "disconnected"
        ] * 2


async def test_q1_a_killed_worker_is_taken_over_and_the_log_says_so(rig: WorkerRig) -> None:
    first = await rig.work("worker-1")
    task_id = await rig.submit(tries("kill", {"hang_after_chunks": 1}, {"text": "taken over"}))
    lost = await rig.started(task_id)
    await first.kill(rig.bus)
    await rig.work("worker-2")
    assert text_of(await rig.answer(task_id)) == "taken over"
    again = rig.of(AttemptStarted, task_id)[-1]
    assert again.redelivered
    assert again.run.attempt != lost.run.attempt
    assert [type(m).__name__ for m in rig.results(task_id)] == [
        "AttemptStarted",
        "AttemptStarted",
        "TaskSucceeded",
    ]


async def test_q9_interactive_work_overtakes_and_batch_is_not_starved(rig: WorkerRig) -> None:
    await rig.work()
    blockers = [await rig.submit(scripted(delay_s=0.4)) for _ in range(POOL.slots)]
    for task_id in blockers:
        await rig.started(task_id)
    batch = [await rig.submit(scripted(delay_s=0.02), priority="batch") for _ in range(40)]
    await asyncio.sleep(0.1)
    urgent = [await rig.submit(scripted(delay_s=0.02)) for _ in range(40)]
    for task_id in (*batch, *urgent):
        await rig.end(task_id)
    ends = [m.task_id for m in rig.of(TaskSucceeded) if m.task_id not in blockers]
    first_half = ends[:36]
    assert sum(task_id in urgent for task_id in first_half) > 24
    assert any(task_id in batch for task_id in first_half)


async def test_q1_a_redelivered_try_starts_only_after_the_log_heard_of_it(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    # there before the assignment: another worker may have begun it
    task_id = await rig.submit(scripted(delay_s=0.3))
    rig.bus.refuse_sends(3)
    await rig.work()
    await until(lambda: rig.bus._refused_sends < 3)
    assert server.log() == []
    assert isinstance(await rig.end(task_id), TaskSucceeded)
    (started,) = rig.of(AttemptStarted, task_id)
    assert started.redelivered
    assert len(server.log()) == 1


async def test_q5_a_refused_commit_is_survived(rig: WorkerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await rig.work()
    source = running.sources["interactive"]
    commit, refused = source.commit, 0

    async def refuse_twice(commits: Mapping[int, Commit]) -> None:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise CommitRefused("the group moved on")
        await commit(commits)

    monkeypatch.setattr(source, "commit", refuse_twice)
    await rig.end(await rig.submit())
    await rig.commits_reach(1)
    assert refused == 2


async def test_a_head_at_the_end_of_its_span_is_parked_and_the_partition_reads_on(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    await rig.work()
    head = await rig.submit(scripted(hang_after_chunks=1))
    await rig.started(head)
    ended = await rig.submit()
    await rig.end(ended)
    (record,) = [r for r in rig.bus.records(NAMES.lane(POOL.name, "interactive")) if r.key == ended.encode()]
    for _ in range(SPAN):  # records of a task that it ended a moment ago are done at once
        await rig.raw(record.key, record.value, record.headers)
    beyond = await rig.submit()
    assert isinstance(await rig.end(beyond), TaskSucceeded)
    (parked,) = rig.of(TaskParked, head)
    assert parked.holder == "worker-1"
    await rig.commits_reach(SPAN + 3)
    await rig.cancel(head)
    assert (await rig.failed_try(head)).next == "closed"
    assert len(server.log()) == 3
