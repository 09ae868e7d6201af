"""Lanes of real Apache Kafka: bad bytes, records out of turn, a broker that is out, classes that compete."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uuid_utils

from loadtest.kills.evidence import read_all
from schemas.codec import encode
from schemas.headers import TaskHeaders
from schemas.messages import RunTask
from schemas.payload import Payload
from schemas.topics import Priority
from tests.e2e.fault_fleet import WORKER, ask, body, everything, finished, outcomes, pid_of, ready, text_of
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOTS = 2
PARTITION = 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    """One fleet for this module; each test leaves all of its processes running."""
    async with scripted_fleet(tmp_path_factory.mktemp("lanes"), "kafka", slots=SLOTS) as running:
        yield running


async def put(
    producer: Any,
    fleet: Scripted,
    marker: str,
    script: dict[str, Any],
    priority: Priority = "interactive",
    tenant: str = "default",
) -> None:
    """A task on partition 0 of its lane, whose request_id is its marker."""
    task_id, now_ms = str(uuid_utils.uuid7()), int(time.time() * 1000)
    fields = body(marker, script)
    task = RunTask(
        task_id=task_id,
        tenant=tenant,
        pool="scripted",
        priority=priority,
        arrived_ms=now_ms,
        body=Payload(inline=fields),
    )
    headers = TaskHeaders(marker, now_ms + 60_000, PARTITION, tenant=tenant)
    await producer.send_and_wait(
        lane_of(fleet, priority),
        encode(task),
        key=task_id.encode(),
        headers=headers.to_wire(),
        partition=PARTITION,
    )


def lane_of(fleet: Scripted, priority: Priority) -> str:
    return fleet.names.lane("scripted", priority)


BAD_BYTES = {
    "no headers": (b"\xff\xfe\x00 not JSON", []),
    "not JSON": (b"{", TaskHeaders("bad", 4_102_444_800_000, PARTITION).to_wire()),
    "wrong type": (b'{"task_id": 5}', TaskHeaders("bad", 4_102_444_800_000, PARTITION).to_wire()),
    "bad deadline": (b"{}", [("type", b"RunTask"), ("v", b"1"), ("deadline", b"soon")]),
    "nothing": (None, []),
}


async def test_q1_a_try_that_began_while_the_log_was_out_has_its_row_though_its_worker_dies(
    fleet: Scripted,
) -> None:
    """Its announcement waits for the broker when the worker is killed: the next worker says it."""
    early, late = [new_marker() for _ in range(SLOTS)], new_marker()
    scripts = {marker: [{"text": marker, "delay_s": 3.0}, {"text": marker}] for marker in early}
    scripts[late] = [{"text": late, "delay_s": 60.0}, {"text": late}]
    asked = {marker: body(marker, {"id": marker, "tries": tries}) for marker, tries in scripts.items()}
    chats = [asyncio.create_task(ask(fleet.stage.url, asked[marker])) for marker in early]
    await asyncio.gather(*(fleet.at_work(marker) for marker in early))
    chats.append(asyncio.create_task(ask(fleet.stage.url, asked[late])))

    async def waits() -> bool | None:
        return late in (await everything(fleet)).accepted.values() or None

    await until(waits, "the queued task on its lane")
    await fleet.stage.broker.kill()
    try:
        await fleet.at_work(late)  # in the slot of a task that ended meanwhile
        await asyncio.sleep(0.2)
        os.kill(pid_of(fleet, WORKER), signal.SIGKILL)
    finally:
        await fleet.stage.broker.start()

    assert sorted(await finished(chats)) == sorted(scripts)
    for marker in scripts:
        first, second = await fleet.ended(marker, 2)
        verdicts = {row["attempt"]: row["verdict"] for row in await fleet.ledger(marker, 2)}
        assert verdicts == {first.attempt: "lost", second.attempt: "outcome"}
    kept = list((fleet.stage.state.path / "journal").glob("*/*.records"))
    assert sum(path.stat().st_size for path in kept) == 0


async def test_q3_bad_bytes_go_to_the_dead_as_they_were_and_the_partition_moves_on(
    fleet: Scripted, producer: Any
) -> None:
    sent = {}
    lane = lane_of(fleet, "interactive")
    for name, (value, headers) in BAD_BYTES.items():
        done = await producer.send_and_wait(
            lane, value, key=name.encode(), headers=headers, partition=PARTITION
        )
        sent[done.offset] = (value, headers)
    marker = new_marker()
    await put(producer, fleet, marker, {"text": marker})
    (behind,) = await fleet.ended(marker)
    assert behind.outcome == "ok"

    dead = fleet.names.dead

    async def buried() -> list[Any] | None:
        records = await read_all(fleet.stage.bootstrap_servers, [dead], 1)
        return records if len(records) >= len(sent) else None

    records = await until(buried, "the dead letters")
    assert len(records) == len(sent)
    by_offset = {int(dict(record.headers)["dead_origin_offset"]): record for record in records}
    assert set(by_offset) == set(sent)
    for offset, (value, headers) in sent.items():
        assert (by_offset[offset].value or b"") == (value or b"")
        kept = dict(by_offset[offset].headers)
        assert {name: kept[name] for name, _ in headers} == dict(headers)


async def test_q6_a_later_success_does_not_commit_past_what_still_runs(
    fleet: Scripted, producer: Any
) -> None:
    slow, quick = new_marker(), [new_marker() for _ in range(5)]
    tries = [{"text": slow, "delay_s": 60}, {"text": slow}]
    await put(producer, fleet, slow, {"id": slow, "tries": tries})
    await fleet.at_work(slow)
    for marker in quick:  # behind it, on the same partition
        await put(producer, fleet, marker, {"text": marker})
    for marker in quick:
        await fleet.ended(marker)
    await asyncio.sleep(1.0)  # several commits
    os.kill(pid_of(fleet, WORKER), signal.SIGKILL)

    _, second = await fleet.ended(slow, 2)
    assert second.outcome == "ok"
    await ready(fleet, WORKER)
    assert (await outcomes(fleet, [slow]))[slow] == ["TaskSucceeded"]
    for marker in quick:  # finished above the watermark: the done-map of the commit remembers them
        assert [one.outcome for one in fleet.attempts(marker)] == ["ok"], marker


async def test_q9_interactive_work_overtakes_and_batch_work_is_not_starved(
    fleet: Scripted, producer: Any
) -> None:
    script = {"delay_s": 0.1}
    batch = [new_marker() for _ in range(40)]
    for marker in batch:
        await put(producer, fleet, marker, script | {"text": marker}, "batch")
    await fleet.ended(batch[0])
    urgent = [new_marker() for _ in range(40)]
    for marker in urgent:
        await put(producer, fleet, marker, script | {"text": marker})
    for marker in (*urgent, *batch):
        await fleet.ended(marker)
    order = [one.marker for one in fleet.server.log() if one.marker in {*batch, *urgent}]
    last_urgent = max(order.index(marker) for marker in urgent)
    between = [marker for marker in order[order.index(urgent[0]) : last_urgent] if marker in batch]
    assert set(batch) & set(order[last_urgent:]) != set()  # what came later ended before
    assert between != []  # and did not stop the rest meanwhile
    assert len(between) < len(urgent) / 2


async def test_q10_a_tenant_that_floods_does_not_keep_the_others_waiting(
    fleet: Scripted, producer: Any
) -> None:
    script = {"delay_s": 0.1}
    flood, others = [new_marker() for _ in range(60)], [new_marker() for _ in range(10)]
    for marker in flood:
        await put(producer, fleet, marker, script | {"text": marker}, tenant="flood")
    await fleet.ended(flood[0])
    for marker in others:
        await put(producer, fleet, marker, script | {"text": marker}, tenant="other")
    for marker in (*others, *flood):
        await fleet.ended(marker)
    order = [one.marker for one in fleet.server.log() if one.marker in {*flood, *others}]
    last = max(order.index(marker) for marker in others)
    assert len(set(flood) & set(order[last:])) > len(flood) / 2  # came before, and had to wait


async def test_a_cancelled_head_does_not_block_its_lane(fleet: Scripted) -> None:
    blockers, head, behind = [new_marker() for _ in range(SLOTS)], new_marker(), new_marker()
    slow = {"delay_s": 4.0}
    chats = [asyncio.create_task(ask(fleet.stage.url, body(m, slow | {"text": m}))) for m in blockers]
    for marker in blockers:
        await fleet.at_work(marker)
    leaving = asyncio.create_task(ask(fleet.stage.url, body(head)))
    await asyncio.sleep(0.3)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert text_of(await ask(fleet.stage.url, body(behind))) == behind
    await asyncio.gather(*chats)
    assert fleet.attempts(head) == []
