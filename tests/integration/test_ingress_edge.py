"""What every request meets: the error shape, the limits, the options, ids, metrics, logs and health."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import openai
import pytest
import structlog

from schemas.payload import REQUEST_LIMIT_BYTES
from schemas.topics import DURABLE_RETENTION_MS
from services.adapters.blobs import DirectoryBlobStore
from services.ingress.settings import IngressKnobs, IngressSettings
from tests.chat_bodies import answer_of, ask, delta
from tests.ingress_bench import Bench, eventually, ingress_bench

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def post(bench: Bench, body: Any, **headers: str) -> Any:
    async with bench.http() as client:
        return await client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/nowhere", b"", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"model": "\xff"}', 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[1]", 400, "invalid_body"),
        ("POST", "/v1/chat/completions", b'{"model":"auto"}', 400, "missing_required_parameter"),
        ("POST", "/v1/completions", b'{"model":"nope","prompt":"x"}', 404, "model_not_found"),
        ("GET", "/v1/models/nope", b"", 404, "model_not_found"),
    ],
)
async def test_every_error_has_the_shape(
    tmp_path: Path, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        response = await client.request(method, path, content=content)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code
    assert response.headers["x-request-id"]


async def test_a_fault_of_our_own_has_the_shape_and_no_details(tmp_path: Path) -> None:
    class BrokenBlobs:
        async def put(self, _data: bytes) -> tuple[str, str]:
            raise RuntimeError("secret detail")

        async def get(self, _key: str, _sha256: str) -> bytes:
            raise RuntimeError("secret detail")

    async with ingress_bench(tmp_path, blobs=BrokenBlobs()) as bench:
        response = await post(bench, ask(user="x" * 300_000))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret detail" not in response.text


async def test_a_body_past_the_limit_is_refused_by_its_length(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        response = await client.post("/v1/chat/completions", content=b"x" * (REQUEST_LIMIT_BYTES + 1))
    assert response.status_code == 413


async def test_a_body_past_the_limit_is_refused_while_it_is_read(tmp_path: Path) -> None:
    async def pieces() -> Any:
        for _ in range(9):
            yield b"x" * (1024 * 1024)

    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        response = await client.post("/v1/chat/completions", content=pieces())  # chunked: no length is told
    assert response.status_code == 413


async def test_a_compressed_body_is_told_of_its_coding(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        answer = await post(bench, {"model": "auto"}, **{"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_content_encoding"


async def test_the_openai_client_names_the_param(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ask(temperature=3))
    assert caught.value.param == "temperature"


async def test_priority_quality_is_told_of_the_objective(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        response = await post(bench, ask(), **{"x-chimera-priority": "quality"})
    assert response.status_code == 400
    assert "x-chimera-objective" in response.json()["error"]["message"]


async def test_no_able_pool_says_what_each_lacks(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        headers = {"x-chimera-required-capabilities": "coding, embed"}
        response = await post(bench, ask(model="auto"), **headers)
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert "chat-fast lacks capability coding, capability embed" in message
    assert "chat-strong lacks capability embed" in message


async def test_options_and_ids_travel_with_the_task(tmp_path: Path) -> None:
    headers = {
        "x-chimera-priority": "batch",
        "x-chimera-objective": "quality",
        "x-chimera-deadline-ms": "60000",
        "x-chimera-session-id": "s1",
        "x-request-id": "mine-1",
        "traceparent": TRACEPARENT,
    }
    body = ask(model="auto", metadata={"chimera_priority": "standard", "other": "kept"})
    async with ingress_bench(tmp_path) as bench:
        call = asyncio.create_task(post(bench, body, **headers))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("ok"))
        response = await call
    assert task.topic == "test.tasks.chat-strong.batch"
    assert (task.task.priority, task.task.objective, task.task.session_id) == ("batch", "quality", "s1")
    assert task.headers.deadline_ms == task.task.arrived_ms + 60_000
    assert task.headers.request_id == response.headers["x-request-id"] == "mine-1"
    assert task.headers.traceparent == TRACEPARENT
    assert task.task.body.inline["metadata"]["other"] == "kept"


async def test_an_insane_request_id_is_replaced(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        response = await client.get("/healthz", headers={"x-request-id": "a b\tc"})
    assert response.headers["x-request-id"] not in ("", "a b\tc")


async def test_models_are_pools_models_and_auto(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        names = {model.id async for model in client.models.list()}
        one = await client.models.retrieve("chat-fast")
    assert names == {"auto", "chat-fast", "small-1", "chat-strong", "large-1"}
    assert one.id == "chat-fast"


async def test_the_metrics_have_exactly_these_names(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(post(bench, ask(stream=True)))
        task = await bench.next_task()
        run = task.attempt()
        await bench.chunk(task, run, 0, [delta("stop", content="hi")])
        await bench.succeed(task, answer_of("hi"), run=run, chunks=1)
        await call
        await post(bench, ask(model="made-up-by-a-client"))
        text = (await client.get("/metrics")).text
    families = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    assert families == {
        "llm_request_total": "counter",
        "llm_request_duration_seconds": "histogram",
        "llm_token_usage": "untyped",
        "llm_requests_in_flight": "gauge",
        "llm_time_to_first_token_seconds": "histogram",
        "llm_queue_wait_seconds": "histogram",
        "llm_stage_seconds": "histogram",
        "chimera_fleet_workers": "gauge",
        "chimera_slow_readers_total": "counter",
    }
    assert "_created" not in text
    assert "made-up" not in text
    lines = text.splitlines()
    assert 'llm_request_total{model="other",status="client_error",task_type="chat"} 1.0' in lines
    assert 'llm_token_usage{direction="input",model="other"} 7.0' in lines
    stages = {line.split('stage="')[1].split('"')[0] for line in lines if 'stage="' in line}
    assert stages == {"auth", "route", "queue", "first_token", "decode", "reply"}


async def test_one_log_line_a_request_without_prompt_or_answer(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logged:
        async with ingress_bench(tmp_path) as bench:
            call = asyncio.create_task(post(bench, ask(user="PROMPT"), **{"x-request-id": "r-1"}))
            task = await bench.next_task()
            run = task.attempt()
            await bench.succeed(task, answer_of("ANSWER"), run=run)
            await call
    lines = [line for line in logged if line["event"] == "request" and line["request_id"] == "r-1"]
    assert len(lines) == 1
    assert lines[0]["task_id"] == task.task.task_id
    assert lines[0]["attempt"] == run.attempt
    assert (lines[0]["pool"], lines[0]["status"]) == ("chat-fast", "ok")
    assert "PROMPT" not in str(logged)
    assert "ANSWER" not in str(logged)


async def test_the_openapi_document_names_the_paths(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        document = (await client.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/readyz"} <= document["paths"].keys()


async def test_a_stopping_service_answers_what_it_has_taken(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        call = asyncio.create_task(post(bench, ask()))
        task = await bench.next_task()
        answering = asyncio.create_task(_answer_later(bench, task))
    await answering
    assert (await call).json()["choices"][0]["message"]["content"] == "in time"


async def _answer_later(bench: Bench, task: Any) -> None:
    await asyncio.sleep(0.3)
    await bench.succeed(task, answer_of("in time"))


async def test_what_is_unanswered_after_the_drain_budget_is_told_so_and_closed(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, drain_s=0.2) as bench:
        call = asyncio.create_task(post(bench, ask()))
        task = await bench.next_task()
    response = await call
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    await bench.closed(task, "cancelled")


def test_an_address_beyond_this_machine_needs_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIMERA_HOST", "0.0.0.0")  # noqa: S104 - that it is refused is the point
    with pytest.raises(ValueError, match="CHIMERA_INSECURE"):
        IngressSettings()
    monkeypatch.setenv("CHIMERA_INSECURE", "true")
    assert IngressSettings().host == "0.0.0.0"  # noqa: S104 - the same


async def test_blobs_that_outlived_every_task_are_removed(tmp_path: Path) -> None:
    store = DirectoryBlobStore(tmp_path / "blobs", "test.")
    old, young = await store.put(b"old"), await store.put(b"young")
    (path,) = (tmp_path / "blobs").rglob(old[1])
    long_ago_s = time.time() - DURABLE_RETENTION_MS / 1000 - 60
    os.utime(path, (long_ago_s, long_ago_s))
    async with ingress_bench(tmp_path, knobs=IngressKnobs(blobs_every_s=0.05)):
        await eventually(lambda: not path.exists())
    assert await store.get(*young) == b"young"
