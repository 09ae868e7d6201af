"""The worker and its lanes: nothing is lost, committed early, run twice or left running (CASES Q, R)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.codec import Unknown, decode
from schemas.failures import FailureKind
from schemas.headers import to_text
from schemas.messages import AttemptFailed, AttemptStarted, TaskFailed, TaskParked, TaskSucceeded
from schemas.payload import INLINE_LIMIT_BYTES, Claim, Payload
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


@pytest.fixture
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(chunks=4) as running:
        yield running


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, tmp_path) as made:
        yield made


async def test_r1_tries_have_one_owner_and_a_cap(rig: WorkerRig, server: ModelServerProcess) -> None:
    await rig.work()
    task_id = await rig.submit(scripted(status=500))
    end = await rig.end(task_id)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.SERVER_ERROR
    assert end.tries == rig.fleet.max_tries
    assert len(server.log()) == rig.fleet.max_tries
    failed = rig.of(AttemptFailed, task_id)
    attempts = [each.run.attempt for each in failed] + [end.run.attempt if end.run else ""]
    assert sorted(record.attempt or "" for record in server.log()) == sorted(attempts)
    (dead,) = rig.dead()
    assert dead.key == task_id.encode()
    assert to_text(dead.headers)["dead_tries"] == str(rig.fleet.max_tries)
    await rig.commits_reach(1)


async def test_r1_a_callers_mistake_is_told_once_and_in_the_backends_words(
    rig: WorkerRig, server: ModelServerProcess
) -> None:
    await rig.work()
    error = {"error": {"message": "temperature is 9, at most 2", "param": "temperature", "code": "too_hot"}}
    task_id = await rig.submit(scripted(status=400, error_body=error))
    end = await rig.end(task_id)
    assert isinstance(end, TaskFailed)
    assert (end.failure.kind, end.failure.message) == (FailureKind.BAD_REQUEST, error["error"]["message"])
    assert (end.failure.param, end.failure.code) == ("temperature", "too_hot")
    assert len(server.log()) == 1
    assert rig.dead() == []


async def test_r2_retry_after_is_waited_for_and_a_long_one_leaves_the_worker(rig: WorkerRig) -> None:
    await rig.work()
    soon = await rig.submit(tries("soon", {"status": 429, "retry_after": 0.4}, {"text": "now"}))
    assert text_of(await rig.answer(soon)) == "now"
    failed = await rig.failed_try(soon)
    assert failed.failure.kind is FailureKind.RATE_LIMITED
    assert failed.failure.retry_after_s == 0.4
    again = (await rig.end(soon)).run
    assert again is not None
    assert again.started_ms - failed.ended_ms >= 399
    late = await rig.submit(scripted(status=429, retry_after=20))
    parked = await rig.failed_try(late)
    assert parked.next == "parked"
    assert parked.due_ms is not None
    assert parked.due_ms >= parked.ended_ms + 20_000
    assert parked.envelope is not None
    assert parked.envelope.headers["tries"] == "1"
    assert parked.envelope.headers["not_before"] == str(parked.due_ms)
    lane = [record for record in rig.bus.records(parked.envelope.lane) if record.key == late.encode()]
    assert parked.envelope.value.encode() == lane[0].value
    await rig.commits_reach(2)
    # what the sweep puts back is run, although this worker let go of it a moment ago
    headers = [(name, text.encode()) for name, text in parked.envelope.headers.items()]
    headers = [(name, b"0" if name == "not_before" else value) for name, value in headers]
    await rig.raw(late.encode(), parked.envelope.value.encode(), headers)
    await until(lambda: len(rig.of(AttemptFailed, late)) == 2)


async def test_q3_what_is_no_task_is_put_away_and_the_partition_moves_on(rig: WorkerRig) -> None:
    await rig.work()
    good = {"type": "RunTask", "v": "1", "deadline": "99999999999999", "result_partition": "1"}
    bad: dict[str, tuple[dict[str, str], bytes]] = {
        "not-json": (good, b"{nope"),
        "wrong-shape": (good, orjson.dumps({"task_id": "wrong-shape", "pool": 7})),
        "other-key": (
            good,
            orjson.dumps({"task_id": "x", "pool": "p", "arrived_ms": 1, "body": {"inline": 1}}),
        ),
        "no-deadline": ({**good, "deadline": "soon"}, b"{}"),
        "no-partition": ({**good, "result_partition": "77"}, b"{}"),
        "not-for-lanes": ({**good, "type": "SubmitTask"}, b"{}"),
    }
    for key, (headers, value) in bad.items():
        await rig.raw(key.encode(), value, [(name, text.encode()) for name, text in headers.items()])
    await rig.raw(None, b"\xff\xfe", [])
    after = await rig.submit()
    assert isinstance(await rig.end(after), TaskSucceeded)
    dead = await until(lambda: rig.dead() if len(rig.dead()) == len(bad) + 1 else None)
    by_key = {record.key: record for record in dead}
    for key, (_, value) in bad.items():
        record = by_key[key.encode()]
        assert record.value == value
        text = to_text(record.headers)
        assert text["dead_origin_topic"] == NAMES.lane(POOL.name, "interactive")
        assert text["dead_reason"]
    await rig.commits_reach(len(bad) + 2)
    failed = {message.task_id: message for message in rig.of(TaskFailed)}
    assert failed.keys() == bad.keys() - {"no-partition"}
    assert {message.failure.kind for message in failed.values()} == {FailureKind.UNDECODABLE}


async def test_q3_a_newer_version_is_kept_as_bytes(rig: WorkerRig) -> None:
    await rig.work()
    headers = [("type", b"RunTask"), ("v", b"2"), ("result_partition", b"1")]
    await rig.raw(b"future", b"\x00 from the future", headers)
    await rig.commits_reach(1)
    (kept,) = [record for record in rig.bus.records(NAMES.results) if record.key == b"future"]
    assert kept.value == b"\x00 from the future"
    assert isinstance(decode(to_text(kept.headers), kept.value), Unknown)
    assert to_text(kept.headers)["kept_origin_topic"] == NAMES.lane(POOL.name, "interactive")
    assert rig.dead() == []


async def test_q3_poison_goes_to_the_dead_before_it_is_let_go_of(rig: WorkerRig) -> None:
    await rig.work()
    running = await rig.submit(scripted(hang_after_chunks=1))
    await rig.started(running)
    await rig.cancel(running, reason="poison")
    await rig.commits_reach(1)
    await rig.cancel("before-it-came", reason="poison")
    await rig.cancel("closed-before-it-came")
    await asyncio.sleep(0.2)
    await rig.submit(task_id="before-it-came")
    await rig.submit(task_id="closed-before-it-came")
    await rig.commits_reach(3)
    assert {record.key for record in rig.dead()} == {running.encode(), b"before-it-came"}
    assert rig.results("before-it-came") == rig.results("closed-before-it-came") == []


async def test_q4_what_cannot_be_published_stays_uncommitted(rig: WorkerRig) -> None:
    await rig.work()
    rig.bus.refuse_sends(1)
    task_id = "refused"
    with pytest.raises(Exception, match="refused"):
        await rig.submit(task_id=task_id)
    task_id = await rig.submit(scripted(delay_s=0.3, status=429, retry_after=30))
    await rig.started(task_id)
    rig.bus.refuse_sends(5)
    await until(lambda: rig.bus._refused_sends < 5)
    assert rig.committed() == 0
    parked = await rig.failed_try(task_id)
    assert parked.next == "parked"
    await rig.commits_reach(1)


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
        await asyncio.sleep(0.3)
        assert len(rig.of(TaskParked, task_id)) == count


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


async def test_deadlines_end_what_runs_and_what_waits(rig: WorkerRig) -> None:
    await rig.work()
    running = [await rig.submit(scripted(hang_after_chunks=1), deadline_s=0.6) for _ in range(POOL.slots)]
    waiting = await rig.submit(deadline_s=0.3)
    late = await rig.submit(deadline_s=-1)
    for task_id in (*running, waiting, late):
        end = await rig.end(task_id)
        assert isinstance(end, TaskFailed)
        assert end.failure.kind is FailureKind.DEADLINE
        assert (end.run is None) is (task_id in (waiting, late))
    await rig.commits_reach(POOL.slots + 2)


async def test_large_bodies_and_answers_go_by_claim_check(rig: WorkerRig) -> None:
    await rig.work()
    text = "word " * (INLINE_LIMIT_BYTES // 4)
    body = orjson.dumps(scripted(text=text, chunks=3))
    key, sha256 = await rig.blobs.put(body)
    claim = Payload(claim=Claim(key=key, sha256=sha256, size=len(body)))
    task_id = await rig.submit(payload=claim)
    end = await rig.end(task_id)
    assert isinstance(end, TaskSucceeded)
    assert end.answer.claim is not None
    assert text_of(await rig.answer(task_id)) == text
    lost = Payload(claim=Claim(key=key, sha256="0" * 64, size=len(body)))
    failed = await rig.end(await rig.submit(payload=lost))
    assert isinstance(failed, TaskFailed)
    assert failed.failure.kind is FailureKind.CLAIM_LOST


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
