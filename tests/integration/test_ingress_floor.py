"""The floor: an older or a fixed answer, only where it is allowed and the failure is not the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from schemas.failures import FailureKind
from schemas.messages import Failure, TaskFailed
from services.ingress.settings import IngressKnobs
from tests.ingress_bench import FLEET, Bench, LaneTask, ingress_bench

CANNED = "We are busy. Please ask again later."
WITH_FLOOR = replace(FLEET, pools=tuple(replace(pool, floor=CANNED) for pool in FLEET.pools))
BROKEN = Failure(kind=FailureKind.SERVER_ERROR, message="the backend failed")
ALLOW = {"x-chimera-degraded": "allow"}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "small-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with ingress_bench(tmp_path, fleet=WITH_FLOOR) as bench:
        yield bench


def question(**fields: Any) -> dict[str, Any]:
    return {"model": "chat-fast", "messages": [{"role": "user", "content": "Capital of France?"}], **fields}


async def asked(
    bench: Bench, body: dict[str, Any], end: Failure | dict[str, Any] | None, **headers: str
) -> httpx.Response:
    """The answer to a chat whose task ends like that; None: nobody ends it."""
    async with bench.http() as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        post = client.post("/v1/chat/completions", json=body, headers=named)
        asking = asyncio.create_task(post)
        task = await bench.next_task()
        await ended(bench, task, end)
        return await asking


async def ended(bench: Bench, task: LaneTask, end: Failure | dict[str, Any] | None) -> None:
    if isinstance(end, Failure):
        await bench.fail(task, end, run=task.attempt(), tries=3)
    elif end is not None:
        await bench.succeed(task, end)


def said(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == httpx.codes.OK, answer.text
    body = answer.json()
    assert body["chimera"] == {"degraded": answer.headers["x-chimera-degraded"]}
    return answer.headers["x-chimera-degraded"], body["choices"][0]["message"]["content"]


async def requests_by_status(bench: Bench) -> dict[str, float]:
    async with bench.http() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("llm_request_total{"):
            status = line.split('status="')[1].split('"')[0]
            found[status] = found.get(status, 0) + float(line.rsplit(" ", 1)[1])
    return found


async def test_a_failure_gets_the_fixed_answer_then_the_one_from_before(bench: Bench) -> None:
    assert said(await asked(bench, question(), BROKEN, **ALLOW)) == ("canned", CANNED)
    assert (await asked(bench, question(), ANSWER, **ALLOW)).json() == ANSWER  # nothing is marked on it
    assert said(await asked(bench, question(), BROKEN, **ALLOW)) == ("cached", "Paris")
    other = question(temperature=0.5)
    assert said(await asked(bench, other, BROKEN, **ALLOW)) == ("canned", CANNED)
    assert await requests_by_status(bench) == {"degraded": 3, "ok": 1}
    ends = [
        record
        for record in bench.bus.records(bench.names.results)
        if b"server_error" in (record.value or b"")
    ]
    assert len(ends) == 3  # the log's word stays what it was


async def test_who_did_not_allow_it_gets_the_failure_and_leaves_nothing(bench: Bench) -> None:
    assert (await asked(bench, question(), ANSWER)).status_code == httpx.codes.OK
    assert (await asked(bench, question(), BROKEN)).status_code == httpx.codes.BAD_GATEWAY
    assert (await asked(bench, question(), BROKEN, x_chimera_degraded="deny")).status_code == 502
    assert said(await asked(bench, question(), BROKEN, **ALLOW)) == ("canned", CANNED)  # not the kept one


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FailureKind.BAD_REQUEST, 400),
        (FailureKind.TOO_LONG, 400),
        (FailureKind.OVERLOADED, 200),
        (FailureKind.NO_SLOT, 200),
        (FailureKind.DEADLINE, 200),
    ],
)
async def test_only_what_is_not_the_callers_fault(bench: Bench, kind: FailureKind, status: int) -> None:
    answer = await asked(bench, question(), Failure(kind=kind, message="so it is"), **ALLOW)
    assert answer.status_code == status
    assert ("x-chimera-degraded" in answer.headers) is (status == 200)


async def test_a_deadline_without_a_word_from_the_log(bench: Bench) -> None:
    answer = await asked(bench, question(), None, x_chimera_deadline_ms="300", **ALLOW)
    assert said(answer) == ("canned", CANNED)


async def test_a_bus_that_takes_nothing(bench: Bench) -> None:
    bench.bus.refuse_sends(100)
    async with bench.http() as client:
        headers = ALLOW | {"x-chimera-deadline-ms": "1500"}
        answer = await client.post("/v1/chat/completions", json=question(), headers=headers)
    assert said(answer) == ("canned", CANNED)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def streamed(events: list[dict[str, Any]]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


async def test_a_stream_before_its_first_byte(bench: Bench) -> None:
    answer = await asked(bench, question(stream=True), BROKEN, **ALLOW)
    assert (answer.status_code, answer.headers["x-chimera-degraded"]) == (200, "canned")
    events = events_of(answer)
    assert streamed(events) == CANNED
    assert events[-1]["chimera"] == {"degraded": "canned"}
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("content", [False, True])
async def test_a_stream_that_has_begun(tmp_path: Path, content: bool) -> None:
    """After pings alone the floor follows; after content the stream ends with its error, as without it."""
    knobs = IngressKnobs(ping_s=0.05)
    async with ingress_bench(tmp_path, fleet=WITH_FLOOR, knobs=knobs) as bench, bench.http() as client:
        body = question(stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=ALLOW) as answer:
            lines = answer.aiter_lines()
            task = await bench.next_task()
            assert await anext(lines) == ": ping"
            run = task.attempt()
            if content:
                chunk = {"choices": [{"index": 0, "delta": {"content": "Par"}, "finish_reason": None}]}
                await bench.chunk(task, run, 0, [chunk])
                assert "Par" in [line async for line in _until_data(lines)][-1]
            await bench.result(task, failed(task, run, chunks=int(content)))
            rest = [line async for line in lines if line.startswith("data: ")]
        if content:
            assert "error" in orjson.loads(rest[-1].removeprefix("data: "))
            assert CANNED not in "".join(rest)
            assert await requests_by_status(bench) == {"backend_error": 1}
        else:
            assert rest[-1] == "data: [DONE]"
            last = orjson.loads(rest[-2].removeprefix("data: "))
            assert last["chimera"] == {"degraded": "canned"}
            assert await requests_by_status(bench) == {"degraded": 1}


async def _until_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("data: "):
            yield line
            return


def failed(task: LaneTask, run: Any, *, chunks: int) -> TaskFailed:
    return TaskFailed(task_id=task.task.task_id, run=run, ended_ms=1, failure=BROKEN, chunks=chunks)


async def test_a_streams_answer_is_kept_too_and_a_wrong_option_is_named(bench: Bench) -> None:
    body = question(stream=True)
    first = await asked(bench, body, ANSWER, **ALLOW)
    assert streamed(events_of(first)) == "Paris"
    again = await asked(bench, body, BROKEN, **ALLOW)
    assert (streamed(events_of(again)), again.headers["x-chimera-degraded"]) == ("Paris", "cached")
    async with bench.http() as client:
        wrong = await client.post(
            "/v1/chat/completions", json=body, headers={"x-chimera-degraded": "perhaps"}
        )
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-chimera-degraded")


async def test_without_a_text_of_the_pool_the_failure_stands(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        assert (await asked(bench, question(), BROKEN, **ALLOW)).status_code == httpx.codes.BAD_GATEWAY
