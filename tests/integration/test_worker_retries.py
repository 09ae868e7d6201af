"""What a worker does with tries that fail and with records that are no tasks (CASES Q3, Q4, R1, R2)."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from structlog.testing import capture_logs

from loadtest.model_server.process import ModelServerProcess
from schemas.codec import Unknown, decode
from schemas.failures import FailureKind
from schemas.headers import to_text
from schemas.messages import AttemptFailed, TaskFailed, TaskSucceeded
from schemas.payload import INLINE_LIMIT_BYTES, Claim, Payload
from tests.integration.worker_rig import (
    NAMES,
    POOL,
    WorkerRig,
    scripted,
    text_of,
    tries,
    until,
)


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
    late = await rig.submit(scripted(status=429, retry_after=3))
    parked = await rig.failed_try(late)
    assert parked.next == "parked"
    assert parked.due_ms is not None
    assert parked.due_ms >= parked.ended_ms + 3_000
    assert parked.envelope is not None
    assert parked.envelope.headers["tries"] == "1"
    assert parked.envelope.headers["not_before"] == str(parked.due_ms)
    lane = [record for record in rig.bus.records(parked.envelope.lane) if record.key == late.encode()]
    assert parked.envelope.value.encode() == lane[0].value
    await rig.commits_reach(2)
    # what the sweep puts back is run, although this worker let go of it a moment ago; the backend's own wait
    # binds every task
    headers = [(name, text.encode()) for name, text in parked.envelope.headers.items()]
    headers = [(name, b"0" if name == "not_before" else value) for name, value in headers]
    await rig.raw(late.encode(), parked.envelope.value.encode(), headers)
    await until(lambda: len(rig.of(AttemptFailed, late)) == 2)
    second = rig.of(AttemptFailed, late)[1]
    assert second.run.started_ms >= parked.ended_ms + 2_999


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


async def test_q3_what_breaks_the_worker_itself_is_told_and_the_partition_moves_on(rig: WorkerRig) -> None:
    await rig.work()
    deeper_than_orjson_writes = 300
    deep = orjson.Fragment(b"[" * deeper_than_orjson_writes + b"]" * deeper_than_orjson_writes)
    body = Payload(inline=orjson.Fragment(orjson.dumps({"x": deep})))
    with capture_logs() as logged:  # to draw this traceback with its locals takes a terminal's logger 15 s
        end = await rig.end(await rig.submit(payload=body))
        await rig.commits_reach(1)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.INTERNAL
    assert any(line.get("exc_info") for line in logged)


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
