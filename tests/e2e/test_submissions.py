"""Producers that write to `submissions` with any Kafka client, and an ingress that dies in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uuid_utils
from aiokafka import AIOKafkaConsumer, TopicPartition
from sqlalchemy import bindparam, text
from sqlalchemy.ext.asyncio import create_async_engine

from loadtest.kills.evidence import gather
from tests.e2e.fault_fleet import body, gone, pid_of, ready, unwritable
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAYS_WHAT_IT_IS = [("type", b"SubmitTask"), ("v", b"1")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["local", "kafka"])
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripted]:
    """One fleet for each broker; each test leaves all of its processes running."""
    if request.param == "kafka":
        request.getfixturevalue("kafka_possible")
    async with scripted_fleet(tmp_path_factory.mktemp("submissions"), request.param, slots=8) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(running: Scripted) -> Scripted:
    """Ready again after whatever the test before has done to it."""
    for name in list(running.stage.services):
        await ready(running, name)
    return running


async def submit(producer: Any, fleet: Scripted, marker: str, **script: Any) -> str:
    """Returns the task_id that it minted."""
    task_id = str(uuid_utils.uuid7())
    task = {"task_id": task_id, "body": {"inline": body(marker, {"text": marker, **script})}}
    await producer.send_and_wait(
        fleet.names.submissions, json.dumps(task).encode(), task_id.encode(), headers=SAYS_WHAT_IT_IS
    )
    return task_id


async def rows_of(fleet: Scripted, task_ids: list[str]) -> dict[str, str]:
    """state by task_id, once each of them has a row."""
    query = text("SELECT task_id, state FROM tasks WHERE task_id IN :ids").bindparams(
        bindparam("ids", expanding=True)
    )

    async def look() -> dict[str, str] | None:
        engine = create_async_engine(fleet.stage.database_url)
        try:
            async with engine.connect() as connection:
                found = await connection.execute(query, {"ids": task_ids})
                rows = {row.task_id: row.state for row in found}
        finally:
            await engine.dispose()
        return rows if len(rows) == len(task_ids) else None

    return await until(look, f"rows of {len(task_ids)} submitted tasks")


async def buried(fleet: Scripted, origin: str) -> Any:
    """The first record on `tasks.dead` that came from the topic."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=fleet.stage.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(fleet.names.dead, 0)])

        async def look() -> Any:
            batches = await consumer.getmany(timeout_ms=500)
            records = [record for batch in batches.values() for record in batch]
            return next((r for r in records if dict(r.headers)["dead_origin_topic"].decode() == origin), None)

        return await until(look, f"a dead letter from {origin}")
    finally:
        await consumer.stop()


async def test_what_a_plain_producer_submits_is_done(fleet: Scripted, producer: Any) -> None:
    marker = new_marker()
    task_id = await submit(producer, fleet, marker)
    assert await rows_of(fleet, [task_id]) == {task_id: "succeeded"}
    (attempt,) = await fleet.ended(marker)
    (row,) = await fleet.ledger(task_id)  # who names no request is known by its task
    assert (row["attempt"], row["verdict"]) == (attempt.attempt, "outcome")


async def test_q3_bad_bytes_go_to_the_dead_letters_and_the_partition_moves_on(
    fleet: Scripted, producer: Any
) -> None:
    marker, topic, value = new_marker(), fleet.names.submissions, b"\xff\x00 not a task"
    task_id = str(uuid_utils.uuid7())
    partition = zlib.crc32(task_id.encode()) % fleet.stage.fleet.partitions
    await producer.send_and_wait(
        topic, value, b"anybody's key", headers=[*SAYS_WHAT_IT_IS, ("mine", b"\x00\x01")], partition=partition
    )
    task = {"task_id": task_id, "body": {"inline": body(marker)}}
    await producer.send_and_wait(
        topic, json.dumps(task).encode(), headers=SAYS_WHAT_IT_IS, partition=partition
    )
    assert await rows_of(fleet, [task_id]) == {task_id: "succeeded"}
    dead = await buried(fleet, topic)
    headers = dict(dead.headers)
    assert (dead.key, dead.value, headers["mine"]) == (b"anybody's key", value, b"\x00\x01")
    assert headers["dead_reason"].startswith(b"SubmitTask: not JSON")
    assert headers["dead_origin_partition"] == str(partition).encode()


async def test_submissions_outlive_an_ingress_that_is_killed(fleet: Scripted, producer: Any) -> None:
    markers = [new_marker() for _ in range(200)]
    pid = pid_of(fleet, "ingress")
    sending = [asyncio.create_task(submit(producer, fleet, marker)) for marker in markers]
    await fleet.ended(markers[0])
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    task_ids = await asyncio.gather(*sending)
    assert set((await rows_of(fleet, list(task_ids))).values()) == {"succeeded"}
    stage = fleet.stage
    evidence = await gather(
        stage.bootstrap_servers, fleet.names, ["scripted"], stage.fleet.partitions, stage.database_url
    )
    verdicts: dict[str, list[str]] = {task_id: [] for task_id in task_ids}
    for row in evidence.ledger.values():
        if row["task_id"] in verdicts:
            verdicts[row["task_id"]].append(row["verdict"])
    assert all(found.count("outcome") == 1 for found in verdicts.values())


@pytest.mark.parametrize("running", ["kafka"], indirect=True)  # the other one can't be told to refuse records
async def test_an_ingress_killed_between_reading_and_publishing_loses_nothing(
    fleet: Scripted, producer: Any
) -> None:
    marker, pid = new_marker(), pid_of(fleet, "ingress")
    log = fleet.stage.state.logs / "ingress.log"
    async with unwritable(fleet, fleet.names.lane("scripted", "standard")):
        task_id = await submit(producer, fleet, marker)

        async def read() -> bool | None:
            lines = [line for line in log.read_text().splitlines() if task_id in line]
            tried = sum("submission not placed" in line for line in lines)
            return True if tried >= 4 else None  # for longer than several commits take

        await until(read, "the submission in the hands of the ingress")
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        assert fleet.attempts(marker) == []
    assert await rows_of(fleet, [task_id]) == {task_id: "succeeded"}
    assert len(fleet.attempts(marker)) == 1
