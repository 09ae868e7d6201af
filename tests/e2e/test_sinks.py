"""R8: prompts, answers and keys stand in the records that carry them, and in nothing that somebody reads by
the way: no log, no span, no error, no metric, no reason of a dead letter.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from schemas.topics import PRIORITIES
from tests.e2e.staged import new_marker, until
from tests.e2e.traced import UPSTREAM, Traced, traced_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT = "prompt-4d1f0a9be7"
ANSWER = "answer-c83e5520af"
SPOKEN = " ".join([ANSWER] * 4)  # so that each chunk has it whole
CALLER_KEY = "sk-caller-77f1d2c4e6a8"
SECRET = (PROMPT, ANSWER, CALLER_KEY, UPSTREAM)
ECHO = {"error": {"message": f"{PROMPT} is bad; key {UPSTREAM} was refused", "code": PROMPT}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traced(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traced]:
    async with traced_fleet(tmp_path_factory.mktemp("sinks"), "local") as running:
        yield running


def chat(script: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"please, {PROMPT}"}
    return {"model": "scripted", "messages": [message], "x_script": script, "user": PROMPT, **more}


async def asked(traced: Traced, fields: Any) -> tuple[str, httpx.Response]:
    """The request's id, which is known to its span, and what came."""
    request_id = new_marker()
    headers = {
        "authorization": f"Bearer {CALLER_KEY}",
        "x-request-id": request_id,
        "content-type": "application/json",
    }
    content = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        url = f"{traced.fleet.base_url}/chat/completions"
        return request_id, await client.post(url, content=content, headers=headers)


SOON = {"chimera_deadline_ms": "3000"}  # the only backend is held for as long as it asks

FAILING = [
    (b'{"messages": "' + PROMPT.encode() + b'" oops', 400),
    (chat({}, temperature=PROMPT), 400),
    (chat({}, messages=[{"role": PROMPT, "content": PROMPT}]), 400),
    (chat({}, model="nobody"), 404),
    (chat({"status": 500, "error_body": ECHO}), 502),  # three times: a dead letter
    (chat({"status": 401, "error_body": ECHO}), 502),
    (chat({"status": 429, "retry_after": 4, "error_body": ECHO}, metadata=SOON), 429),  # later than that
    (chat({"text": ANSWER, "html_error": True}), 502),
    (chat({"text": ANSWER, "delay_s": 20}, metadata={"chimera_deadline_ms": "500"}), 504),
]


async def test_r8_nothing_that_is_said_or_answered_is_found_beside_its_own_records(traced: Traced) -> None:
    requests, errors = await _failures(traced)
    whole, answer = await asked(traced, chat({"text": ANSWER}))
    streamed, stream = await asked(traced, chat({"text": SPOKEN, "chunks": 4}, stream=True))
    assert ANSWER in answer.text
    assert stream.text.endswith("data: [DONE]\n\n")
    assert stream.text.count(ANSWER) == 4
    broken, events = await asked(
        traced,
        chat({"text": SPOKEN, "chunks": 4, "chunk_interval_s": 0.3, "reset_after_chunks": 2}, stream=True),
    )
    errors.append(events.text.split("\n\n")[-2])
    assert "error" in errors[-1]
    refused = chat({"status": 400, "error_body": {"error": {"message": f"not so: {UPSTREAM}"}}})
    mended, told = await asked(traced, refused)
    errors.append(told.text)  # a backend's own words, for the caller to mend
    await _cancelled(traced)
    await _submitted_badly(traced)

    dead = await _read(traced, "traced.tasks.dead")
    lanes = [f"traced.tasks.scripted.{priority}" for priority in PRIORITIES]
    asked_for = b"".join(record.value or b"" for record in await _read(traced, *lanes))
    answered = b"".join(
        record.value or b"" for record in await _read(traced, "traced.results", "traced.replies")
    )
    for request_id in [*requests, whole, streamed, broken, mended]:
        await traced.collector.served(request_id)
    sinks = await _sinks(traced, dead, errors)

    found = {(name, secret) for name, shown in sinks.items() for secret in SECRET if secret in shown}
    assert found == set()
    assert PROMPT.encode() in asked_for
    assert ANSWER.encode() in answered
    assert not [key for key in (CALLER_KEY, UPSTREAM) if key.encode() in answered]
    assert [record.value for record in dead if PROMPT.encode() not in record.value] == []
    assert {dict(record.headers)["dead_origin_topic"] for record in dead} == {
        b"traced.submissions",
        b"traced.tasks.scripted.interactive",
    }


async def _failures(traced: Traced) -> tuple[list[str], list[str]]:
    """The ids of requests that fail, and their error bodies."""
    answers = await asyncio.gather(*(asked(traced, fields) for fields, _ in FAILING))
    assert [answer.status_code for _, answer in answers] == [status for _, status in FAILING]
    return [name for name, _ in answers], [answer.text for _, answer in answers]


async def _cancelled(traced: Traced) -> None:
    marker = new_marker()
    hanging = asyncio.create_task(asked(traced, chat({"text": ANSWER, "delay_s": 30}, x_marker=marker)))
    await traced.fleet.at_work(marker)
    hanging.cancel()
    await asyncio.wait({hanging})
    await traced.fleet.ended(marker)


async def _submitted_badly(traced: Traced) -> None:
    """Bytes that are no task, and a task whose body is refused."""
    headers = [("type", b"SubmitTask"), ("v", b"1")]
    async with AIOKafkaProducer(bootstrap_servers=traced.fleet.stage.bootstrap_servers) as producer:
        for task in ({"task_id": [PROMPT]}, {"task_id": "t-1", "body": {"inline": chat({}, n=PROMPT)}}):
            value = json.dumps(task).encode()
            await producer.send_and_wait("traced.submissions", value, headers=headers)
    log = traced.fleet.stage.state.logs / "ingress.log"

    async def put_away() -> bool | None:
        said = log.read_text()
        return True if "not a submission" in said and "submission refused" in said else None

    await until(put_away, "both submissions put away")


async def _read(traced: Traced, *topics: str) -> list[Any]:
    """All that the topics hold, until nothing more comes for a second."""
    client = AIOKafkaConsumer(
        bootstrap_servers=traced.fleet.stage.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await client.start()
    try:
        counts = {topic: 1 if topic.endswith(".dead") else 4 for topic in topics}
        client.assign([TopicPartition(topic, index) for topic in topics for index in range(counts[topic])])
        records: list[Any] = []
        while batches := await client.getmany(timeout_ms=2000):
            records += [record for batch in batches.values() for record in batch]
        return records
    finally:
        await client.stop()


async def _sinks(traced: Traced, dead: list[Any], errors: list[str]) -> dict[str, str]:
    """Everything that people, collectors and dashboards read, by name."""
    logs = traced.fleet.stage.state.logs
    found = {f"log {name}": (logs / name).read_text(errors="replace") for name in os.listdir(logs)}
    assert {"log ingress.log", "log worker-scripted.log", "log orchestrator.log"} <= found.keys()
    found |= {f"metrics of {name}": shown for name, shown in (await traced.metrics()).items()}
    found |= {f"error {index}": shown for index, shown in enumerate(errors)}
    found["spans"] = b"".join(traced.collector.raw).decode("utf-8", "replace")
    assert "chat breaking" in found["spans"]
    found["rows"] = await _failure_rows(traced)
    reasons = [value for record in dead for name, value in record.headers if name.startswith("dead_")]
    found["dead letters' reasons"] = b"\n".join(reasons).decode()
    return found


async def _failure_rows(traced: Traced) -> str:
    engine = create_async_engine(traced.fleet.stage.database_url)
    try:
        async with engine.connect() as connection:
            rows = await connection.execute(text("SELECT reason, failure FROM tasks WHERE state = 'failed'"))
            found = [str(tuple(row)) for row in rows]
    finally:
        await engine.dispose()
    assert found
    return "\n".join(found)
