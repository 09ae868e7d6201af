"""Tasks from `submissions`, on the in-memory broker: where they go, why they don't, and what is committed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.codec import decode_as, encode, message_headers
from schemas.failures import FailureKind
from schemas.headers import to_text
from schemas.messages import SubmitTask, TaskFailed
from schemas.payload import INLINE_LIMIT_BYTES, Claim, Payload
from services.core.placement import stable_partition
from services.ingress.settings import IngressKnobs
from services.ports import BusError, InRecord, OutRecord
from tests.chat_bodies import ask
from tests.fakes.bus import FakeBus
from tests.ingress_bench import FLEET, LONGEST_S, Bench, eventually, ingress_bench, new_bus

DEEPER_THAN_CAN_BE_WRITTEN = Payload(inline=orjson.Fragment(b'{"x":' + b"[" * 400 + b"]" * 400 + b"}"))
HOUR_MS = 3_600_000
NEVER = 1_000_000
QUICK = IngressKnobs(send_again_s=0.02)


def now_ms() -> int:
    return int(time.time() * 1000)


def bus_of_today() -> FakeBus:
    """Its records have times that a deadline can follow from."""
    return new_bus(first_timestamp_ms=now_ms() - 5_000)


async def submit(
    bench: Bench, task_id: str, body: Any = None, *, headers: dict[str, str] | None = None, **fields: Any
) -> None:
    """As a producer does it."""
    payload = body if isinstance(body, Payload) else Payload(inline=ask() if body is None else body)
    task = SubmitTask(task_id=task_id, body=payload, **fields)
    await put(bench, task_id.encode(), encode(task), {"type": "SubmitTask", "v": "1", **(headers or {})})


async def put(bench: Bench, key: bytes | None, value: bytes | None, headers: dict[str, str]) -> None:
    wire = [(name, text.encode()) for name, text in headers.items()]
    record = OutRecord(bench.names.submissions, key, value, wire, 0)
    await bench.publisher.send(record, timeout_s=LONGEST_S)


def stored(bus: FakeBus, record: OutRecord) -> None:
    """Although the bus refuses what is sent."""
    refused, bus._refused_sends = bus._refused_sends, 0
    bus._store(record)
    bus._refused_sends = refused


async def committed(bench: Bench, offset: int, partition: int = 0) -> None:
    """Returns once the group has committed up to there."""

    def look() -> bool:
        commit = bench.bus.commits(bench.names.submissions_group).get(partition)
        return commit is not None and commit.offset >= offset

    await eventually(look)


def on_lanes(bench: Bench) -> list[InRecord]:
    topics = [topic for topic in bench.bus._logs if topic.startswith("test.tasks.c")]
    return [record for topic in topics for record in bench.bus.records(topic)]


async def failed(bench: Bench, task_id: str) -> TaskFailed:
    """The end that `results` has of a task, in the task's own partition."""

    def look() -> list[InRecord]:
        records = bench.bus.records(bench.names.results)
        return [record for record in records if record.key == task_id.encode()]

    (record,) = await eventually(look)
    assert to_text(record.headers)["type"] == "TaskFailed"
    assert record.partition == stable_partition(task_id, FLEET.partitions)
    return decode_as(TaskFailed, record.value)


async def test_a_submission_goes_to_a_lane_and_is_then_done(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, bus=bus_of_today()) as bench:
        before_ms = now_ms()
        await submit(
            bench,
            "t-1",
            ask(model="auto"),
            required_capabilities=("coding",),
            priority="batch",
            keep_answer=True,
            headers={"request_id": "r-1", "deadline": str(before_ms + HOUR_MS), "traceparent": "00-a-b-01"},
        )
        task = await bench.next_task()
        await committed(bench, 1)
    assert task.topic == "test.tasks.chat-strong.batch"
    assert task.partition == task.headers.result_partition == stable_partition("t-1", FLEET.partitions)
    assert task.headers.reply_partition is None
    assert (task.headers.request_id, task.headers.deadline_ms) == ("r-1", before_ms + HOUR_MS)
    assert (task.task.task_id, task.task.model, task.task.keep_answer) == ("t-1", "auto", True)
    assert not task.task.stream
    assert task.task.body.inline == ask(model="auto")


async def test_the_default_deadline_is_the_same_for_every_redelivery(tmp_path: Path) -> None:
    bus = bus_of_today()
    async with ingress_bench(tmp_path, bus=bus) as bench:
        await submit(bench, "t-1")
        first = await bench.next_task()
        await committed(bench, 1)
        arrived_ms = bus.records(bench.names.submissions)[0].timestamp_ms
        await put_again(bench)
        again = await bench.next_task()
    assert first.headers.deadline_ms == arrived_ms + FLEET.deadlines_s["standard"] * 1000
    assert first.task.arrived_ms == arrived_ms
    # The second lane record stands where the first does: its worker attaches or skips it.
    assert (again.topic, again.partition, again.headers) == (first.topic, first.partition, first.headers)
    assert again.value == first.value


async def put_again(bench: Bench) -> None:
    """The group forgets what it committed, as after a crash before the commit."""
    bench.bus._groups[bench.names.submissions_group].commits.clear()
    bench.ingress.submissions._offsets._trackers.clear()
    await bench.bus.rebalance(bench.names.submissions_group)


EMBED = {"model": "chat-fast", "input": "x"}


@pytest.mark.parametrize(
    ("body", "fields", "headers", "kind", "code"),
    [
        ({"model": "chat-fast"}, {}, {}, FailureKind.BAD_REQUEST, "missing_required_parameter"),
        (["no object"], {}, {}, FailureKind.BAD_REQUEST, "invalid_body"),
        (DEEPER_THAN_CAN_BE_WRITTEN, {}, {}, FailureKind.BAD_REQUEST, "invalid_body"),
        (ask(model="nobody"), {}, {}, FailureKind.NO_POOL, "model_not_found"),
        (ask(), {"required_capabilities": ("vision",)}, {}, FailureKind.NO_POOL, "no_pool"),
        (EMBED | {"input": ""}, {"kind": "embedding"}, {}, FailureKind.BAD_REQUEST, "invalid_value"),
        (EMBED, {"kind": "embedding"}, {}, FailureKind.NO_POOL, "no_pool"),
        (ask(), {}, {"deadline": "soon"}, FailureKind.BAD_REQUEST, "invalid_value"),
        (ask(), {}, {"deadline": str(10**15 - 1)}, FailureKind.BAD_REQUEST, "invalid_value"),
        (ask(), {}, {"deadline": "1"}, FailureKind.DEADLINE, "deadline"),
        (
            Payload(claim=Claim(key="test." + "0" * 64, sha256="0" * 64, size=3)),
            {},
            {},
            FailureKind.CLAIM_LOST,
            "claim_lost",
        ),
    ],
)
async def test_what_is_refused_ends_with_the_reason(
    tmp_path: Path, body: Any, fields: dict[str, Any], headers: dict[str, str], kind: FailureKind, code: str
) -> None:
    bus = bus_of_today()
    async with ingress_bench(tmp_path, bus=bus) as bench:
        await submit(bench, "t-1", body, headers=headers, **fields)
        end = await failed(bench, "t-1")
        await committed(bench, 1)
        assert on_lanes(bench) == []
        assert bench.bus.records(bench.names.dead) == []
    assert (end.failure.kind, end.failure.code) == (kind, code)
    assert end.run is None


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"\xff\x00 no JSON", {"type": "SubmitTask", "v": "1"}),
        (b'{"task_id": 7}', {"type": "SubmitTask", "v": "1"}),
        (None, {"type": "SubmitTask", "v": "1"}),
        (b"{}", {}),
        (encode(SubmitTask(task_id="x", body=Payload(inline={}))), {"type": "RunTask", "v": "1"}),
    ],
)
async def test_q3_bad_bytes_are_buried_whole_and_the_partition_moves_on(
    tmp_path: Path, value: bytes | None, headers: dict[str, str]
) -> None:
    bus = bus_of_today()
    async with ingress_bench(tmp_path, bus=bus) as bench:
        await put(bench, b"t-1", value, headers)
        await submit(bench, "t-2")
        assert (await bench.next_task()).task.task_id == "t-2"
        await committed(bench, 2)
        (dead,) = bench.bus.records(bench.names.dead)
        ends = [record for record in bench.bus.records(bench.names.results) if record.key == b"t-1"]
    assert (dead.key, dead.value) == (b"t-1", value)
    assert dict(dead.headers).items() >= {name: text.encode() for name, text in headers.items()}.items()
    said = to_text(dead.headers)
    assert said["dead_reason"]
    assert (said["dead_origin_topic"], said["dead_origin_partition"]) == (bench.names.submissions, "0")
    assert said["dead_origin_offset"] == "0"
    told = [decode_as(TaskFailed, record.value).failure.kind for record in ends]
    assert told == ([FailureKind.UNDECODABLE] if headers.get("type") == "SubmitTask" else [])


@pytest.mark.parametrize("headers", [{"type": "SubmitPlan", "v": "1"}, {"type": "SubmitTask", "v": "2"}])
async def test_what_only_a_newer_version_knows_is_kept(tmp_path: Path, headers: dict[str, str]) -> None:
    async with ingress_bench(tmp_path, bus=bus_of_today()) as bench:
        await put(bench, b"t-1", b"\xff new", headers)
        (kept,) = await eventually(lambda: bench.bus.records(bench.names.results))
        await committed(bench, 1)
        assert bench.bus.records(bench.names.dead) == []
    assert (kept.key, kept.value) == (b"t-1", b"\xff new")
    said = to_text(kept.headers)
    assert said.items() >= headers.items()
    assert (said["kept_origin_topic"], said["kept_origin_offset"]) == (bench.names.submissions, "0")


class FailingBlobs:
    """A store with a fault that nobody foresaw."""

    async def get(self, _key: str, _sha256: str) -> bytes:
        raise RuntimeError("secret detail")


async def test_a_record_that_the_ingress_fails_on_does_not_stop_the_others(tmp_path: Path) -> None:
    bus = bus_of_today()
    claimed = Payload(claim=Claim(key="test." + "0" * 64, sha256="0" * 64, size=3))
    async with ingress_bench(tmp_path, bus=bus, blobs=FailingBlobs()) as bench:
        await submit(bench, "t-1", claimed)
        await submit(bench, "t-2")
        assert (await bench.next_task()).task.task_id == "t-2"
        end = await failed(bench, "t-1")
        await committed(bench, 2)
        (dead,) = bench.bus.records(bench.names.dead)
    assert dead.key == b"t-1"
    assert dead.value == encode(SubmitTask(task_id="t-1", body=claimed))
    assert end.failure.kind is FailureKind.INTERNAL


async def test_q4_what_was_not_acknowledged_is_sent_again(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, bus=bus_of_today(), knobs=QUICK) as bench:
        bench.bus.lose_acks(2)  # the producer's, then that of the RunTask: it is there, and nobody said so
        with pytest.raises(BusError):
            await submit(bench, "t-1")
        tasks = [await bench.next_task() for _ in range(2)]
        await committed(bench, 1)
    assert [task.task.task_id for task in tasks] == ["t-1", "t-1"]
    assert tasks[0].partition == tasks[1].partition


async def test_q4_q5_a_lane_that_takes_nothing_holds_commits_and_reading_back(tmp_path: Path) -> None:
    bus = bus_of_today()
    knobs = replace(QUICK, submissions_in_flight=4)
    async with ingress_bench(tmp_path, bus=bus, knobs=knobs) as bench:
        source = bench.ingress._parts.submissions
        bus.refuse_sends(NEVER)
        for number in range(40):
            task = SubmitTask(task_id=str(number), body=Payload(inline=ask()))
            stored(bus, OutRecord(bench.names.submissions, None, encode(task), message_headers(task), 0))
        await eventually(
            lambda: bus._refused_sends < NEVER - 40
        )  # each of the four was tried again and again
        assert source.position(0) == 4
        await bus.rebalance(bench.names.submissions_group)  # what is under way comes again, and is known
        await eventually(lambda: bus._refused_sends < NEVER - 80)
        assert bus.commits(bench.names.submissions_group) == {}
        assert on_lanes(bench) == []
        bus.refuse_sends(0)
        await committed(bench, 40)
    assert sorted(int(record.key or b"-1") for record in on_lanes(bench)) == list(range(40))


async def test_a_replica_that_ends_finishes_what_it_has_read(tmp_path: Path) -> None:
    bus = bus_of_today()
    async with ingress_bench(tmp_path, bus=bus) as bench:
        for number in range(20):
            await submit(bench, str(number))
    done = bus.commits(bench.names.submissions_group)[0].offset if on_lanes(bench) else 0
    assert len(on_lanes(bench)) == done
    async with ingress_bench(tmp_path, bus=bus) as bench:
        await committed(bench, 20)
        assert sorted(int(record.key or b"-1") for record in on_lanes(bench)) == list(range(20))


async def test_a_large_body_goes_by_claim_and_a_claim_is_passed_on(tmp_path: Path) -> None:
    large = ask(messages=[{"role": "user", "content": "x" * (INLINE_LIMIT_BYTES + 1)}])
    async with ingress_bench(tmp_path, bus=bus_of_today()) as bench:
        await submit(bench, "t-1", large)
        claimed = (await bench.next_task()).task.body
        assert claimed.claim is not None
        await submit(bench, "t-2", claimed)
        assert (await bench.next_task()).task.body == claimed
        blobs = bench.ingress._parts.blobs
        assert orjson.loads(await blobs.get(claimed.claim.key, claimed.claim.sha256)) == large
