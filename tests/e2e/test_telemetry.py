"""One request is one trace, from its caller to the model server; and what the real /metrics says."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer

from loadtest.model_server.attempts import AttemptRecord
from tests.e2e.fault_fleet import ask, ask_streamed, body, text_of
from tests.e2e.staged import new_marker, until
from tests.e2e.traced import FLOOR, Seen, Traced, samples, traced_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5
STATUSES = {"ok", "client_error", "backend_error", "deadline", "cancelled", "shed", "degraded"}
BREAKING = {"model": "breaking", "task_type": "chat"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traced(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traced]:
    async with traced_fleet(tmp_path_factory.mktemp("traced"), "local") as running:
        yield running


def new_trace() -> tuple[str, str, str]:
    """A caller's trace id, span id, and the header that says them."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-01"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_one_trace_from_its_caller_to_the_model_and_back(
    traced: Traced, stream: bool
) -> None:
    trace_id, caller, traceparent = new_trace()
    marker = new_marker()
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        answer = await client.post(
            f"{traced.fleet.base_url}/chat/completions",
            json=body(marker, stream=stream),
            headers={"traceparent": traceparent, "x-request-id": marker},
        )
    assert answer.status_code == httpx.codes.OK
    lane, results = "traced.tasks.scripted.interactive", "traced.results"
    spans = await traced.collector.trace(trace_id, 5)
    served, sent = spans["POST /v1/chat/completions"], spans[f"send {lane}"]
    ran, called, replied = spans[f"process {lane}"], spans["chat breaking"], spans[f"process {results}"]

    assert [span.kind for span in (served, sent, ran, called, replied)] == [
        SERVER,
        PRODUCER,
        CONSUMER,
        CLIENT,
        CONSUMER,
    ]
    assert served.parent_id == caller
    assert sent.parent_id == replied.parent_id == served.span_id
    assert ran.parent_id == sent.span_id
    assert called.parent_id == ran.span_id
    assert set(replied.links) <= {span.span_id for span in spans.values()}
    assert replied.links
    (attempt,) = await traced.fleet.ended(marker)
    assert attempt.traceparent == f"00-{trace_id}-{called.span_id}-01"

    _check_request(served, ran, marker, attempt)
    _check_model_call(called, attempt)
    _check_messaging(sent, "send", lane, marker)
    _check_messaging(ran, "process", lane, marker)
    _check_messaging(replied, "process", results, None)
    assert ran.attributes["messaging.consumer.group.name"] == lane
    assert ran.attributes["messaging.kafka.offset"] >= 0


def _check_request(served: Seen, ran: Seen, marker: str, attempt: AttemptRecord) -> None:
    ids = {span.attributes.get("chimera.task_id") for span in (served, ran)}
    assert len(ids) == 1
    assert served.attributes["chimera.request_id"] == marker
    assert served.attributes["http.response.status_code"] == 200
    assert served.attributes["chimera.attempt"] == attempt.attempt


def _check_model_call(called: Seen, attempt: AttemptRecord) -> None:
    assert called.attributes["chimera.attempt"] == attempt.attempt
    assert called.attributes["gen_ai.operation.name"] == "chat"
    assert called.attributes["gen_ai.request.model"] == "breaking"
    assert called.attributes["gen_ai.usage.input_tokens"] == attempt.tokens_in
    assert called.attributes["gen_ai.usage.output_tokens"] == attempt.tokens_out


def _check_messaging(span: Seen, operation: str, topic: str, conversation: str | None) -> None:
    said = span.attributes
    assert said["messaging.system"] == "kafka"
    assert (said["messaging.operation.type"], said["messaging.destination.name"]) == (operation, topic)
    assert span.name == f"{operation} {topic}"
    assert said["messaging.destination.partition.id"] in {"0", "1", "2", "3"}
    assert said.get("messaging.message.conversation_id") == conversation


async def test_a_submission_goes_on_in_its_producers_trace(traced: Traced) -> None:
    trace_id, producer_span, traceparent = new_trace()
    marker = new_marker()
    headers = [("type", b"SubmitTask"), ("v", b"1"), ("traceparent", traceparent.encode())]
    async with AIOKafkaProducer(bootstrap_servers=traced.fleet.stage.bootstrap_servers) as producer:
        task = {"task_id": marker, "body": {"inline": body(marker)}}
        await producer.send_and_wait("traced.submissions", json.dumps(task).encode(), headers=headers)
    spans = await traced.collector.trace(trace_id, 4)
    taken, sent = spans["process traced.submissions"], spans["send traced.tasks.scripted.standard"]
    ran = spans["process traced.tasks.scripted.standard"]
    assert (taken.kind, taken.parent_id, taken.links) == (CONSUMER, producer_span, (producer_span,))
    assert (sent.parent_id, ran.parent_id) == (taken.span_id, sent.span_id)
    assert taken.attributes["messaging.consumer.group.name"] == "traced.submissions"
    assert taken.attributes["chimera.task_id"] == marker


async def test_the_real_metrics_have_the_promised_names_and_labels_and_every_status(traced: Traced) -> None:
    before = _requests(await traced.metrics())
    await _provoke_every_status(traced)

    async def counted() -> Counter[str] | None:
        grown = _requests(await traced.metrics()) - before
        return grown if grown.total() == len(STATUSES) + 1 else None

    grown = await until(counted, "the requests in /metrics")
    assert grown == Counter({**dict.fromkeys(STATUSES, 1), "ok": 2})

    texts = await traced.metrics()
    text = texts.pop("ingress")
    found = samples(text)
    assert _labels(found, "llm_request_total") == {("model", "status", "task_type")}
    assert _labels(found, "llm_token_usage") == {("direction", "model")}
    assert _labels(found, "llm_request_duration_seconds_count") == {("model", "task_type")}
    assert _labels(found, "llm_request_duration_seconds_sum") == {("model", "task_type")}
    assert _labels(found, "llm_request_duration_seconds_bucket") == {("le", "model", "task_type")}
    assert "llm_token_usage_total" not in found
    assert not [name for name in found if name.endswith("_created")]
    assert {dict(labels)["model"] for labels in found["llm_request_total"]} <= {"breaking", "other"}
    assert {dict(labels)["direction"] for labels in found["llm_token_usage"]} == {"input", "output"}
    assert "# TYPE llm_request_duration_seconds histogram" in text
    promised = {"llm_request", "llm_request_duration", "llm_token"}
    for other in texts.values():
        assert not [name for name in samples(other) if any(name.startswith(one) for one in promised)]


def _requests(texts: dict[str, str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for labels, value in samples(texts["ingress"]).get("llm_request_total", {}).items():
        counts[dict(labels)["status"]] += int(value)
    return counts


def _labels(found: Any, name: str) -> set[tuple[str, ...]]:
    return {tuple(label for label, _ in labels) for labels in found[name]}


async def _provoke_every_status(traced: Traced) -> None:
    url, marker = traced.fleet.stage.url, new_marker()
    assert await ask_streamed(url, body(marker, stream=True)) == marker
    assert (await ask(url, body(new_marker()))).status_code == httpx.codes.OK
    unknown = body(new_marker()) | {"model": "nobody"}
    assert (await ask(url, unknown)).status_code == httpx.codes.NOT_FOUND
    broken = body(new_marker(), {"status": 500})
    assert (await ask(url, broken)).status_code == httpx.codes.BAD_GATEWAY
    soon = {"metadata": {"chimera_deadline_ms": "800"}}
    late = body(new_marker(), {"delay_s": 30}) | soon
    assert (await ask(url, late)).status_code == httpx.codes.GATEWAY_TIMEOUT
    fallback = {"metadata": {"chimera_degraded": "allow"}}
    assert text_of(await ask(url, body(new_marker(), {"status": 500}) | fallback)) == FLOOR
    gone = body(new_marker(), {"delay_s": 30})
    hanging = asyncio.create_task(ask(url, gone))
    await traced.fleet.at_work(gone["x_marker"])
    hanging.cancel()
    await asyncio.wait({hanging})
    # the last of all: the only backend then rests for ten minutes
    limited = body(new_marker(), {"status": 429, "retry_after": 600})  # later than its deadline
    assert (await ask(url, limited)).status_code == httpx.codes.TOO_MANY_REQUESTS
