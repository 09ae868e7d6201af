"""Calls answered in one piece, through a real server and the unmodified `openai` client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from schemas.failures import FailureKind
from schemas.messages import Failure
from schemas.payload import INLINE_LIMIT_BYTES
from services.adapters.blobs import DirectoryBlobStore
from services.ingress.service import instance_partition
from services.ports import BusError, OutRecord
from tests.chat_bodies import answer_of, ask
from tests.fakes.bus import FakeBus, FakePublisher
from tests.ingress_bench import FLEET, LONGEST_S, Bench, eventually, ingress_bench, new_bus


async def test_a_chat_comes_back_with_the_model_that_answered(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        call = asyncio.ensure_future(client.chat.completions.with_raw_response.create(**ask()))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("hello", model="small-1"))
        response = await call
        answer = response.parse()
    assert answer.choices[0].message.content == "hello"
    assert answer.model == "small-1"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 10
    assert response.headers["x-chimera-pool"] == "chat-fast"
    assert response.headers["x-request-id"] == task.headers.request_id
    assert task.task.priority == "interactive"
    assert task.headers.reply_partition is None


async def test_the_synchronous_client_is_served_too(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:

        def call() -> str | None:
            with OpenAI(
                api_key="none", base_url=f"{bench.url}/v1", max_retries=0, timeout=LONGEST_S
            ) as client:
                answer: ChatCompletion = client.chat.completions.create(**ask())
                return answer.choices[0].message.content

        calling = asyncio.create_task(asyncio.to_thread(call))
        await bench.succeed(await bench.next_task(), answer_of("from a thread"))
        assert await calling == "from a thread"


async def test_a_body_travels_as_the_bytes_that_were_sent(tmp_path: Path) -> None:
    body = (
        b'{ "model":"chat-fast" , "messages":[{"role":"user","content":"\xf0\x9f\x99\x82"}], "x_new": 1.50 }'
    )
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", content=body))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("ok"))
        assert (await call).status_code == 200
    assert body in task.value


async def test_q11_a_large_body_goes_by_claim_check(tmp_path: Path) -> None:
    body = ask(messages=[{"role": "user", "content": "x" * (INLINE_LIMIT_BYTES + 1)}])
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("ok"))
        assert (await call).status_code == 200
        claim = task.task.body.claim
        assert claim is not None
        stored = await DirectoryBlobStore(tmp_path / "blobs", "test.").get(claim.key, claim.sha256)
    assert orjson.loads(stored) == body


async def test_text_completions_are_served(tmp_path: Path) -> None:
    answer = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "small-1",
        "choices": [{"index": 0, "text": " world", "finish_reason": "stop", "logprobs": None}],
    }
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        call = asyncio.create_task(client.completions.create(model="chat-fast", prompt="hello"))
        task = await bench.next_task()
        await bench.succeed(task, answer)
        assert (await call).choices[0].text == " world"
    assert task.task.kind == "completion"


@pytest.mark.parametrize(
    ("kind", "status", "retry"),
    [
        (FailureKind.BAD_REQUEST, 400, None),
        (FailureKind.RATE_LIMITED, 429, None),
        (FailureKind.OVERLOADED, 503, None),
        (FailureKind.SERVER_ERROR, 502, "false"),
        (FailureKind.BAD_ANSWER, 502, "false"),
        (FailureKind.DEADLINE, 504, "false"),
        (FailureKind.INTERNAL, 500, "false"),
    ],
)
async def test_a_failure_has_its_status(
    tmp_path: Path, kind: FailureKind, status: int, retry: str | None
) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
        await bench.fail(await bench.next_task(), Failure(kind=kind, message="what happened", code="why"))
        response = await call
    assert response.status_code == status
    assert response.headers.get("x-should-retry") == retry
    assert response.json()["error"]["message"] == "what happened"
    assert ("retry-after" in response.headers) == (status in (429, 503))


async def test_r2_the_backends_retry_after_is_passed_on(tmp_path: Path) -> None:
    failure = Failure(kind=FailureKind.RATE_LIMITED, message="slow down", retry_after_s=6.2)
    async with ingress_bench(tmp_path) as bench, bench.openai() as client:
        call = asyncio.create_task(client.chat.completions.create(**ask()))
        await bench.fail(await bench.next_task(), failure)
        with pytest.raises(openai.RateLimitError) as caught:
            await call
    assert caught.value.response.headers["retry-after"] == "7"


@pytest.mark.parametrize("kind", [FailureKind.SERVER_ERROR, FailureKind.DEADLINE])
async def test_r1_the_clients_library_does_not_repeat_what_the_worker_has(
    tmp_path: Path, kind: FailureKind
) -> None:
    async with ingress_bench(tmp_path) as bench, bench.openai(max_retries=2) as client:
        call = asyncio.ensure_future(client.chat.completions.create(**ask()))
        task = await bench.next_task()
        await bench.fail(task, Failure(kind=kind, message="tried three times"))
        with pytest.raises(openai.InternalServerError):
            await call
        assert len(bench.bus.records(task.topic)) == 1


async def test_a_refusal_of_our_own_key_shows_nothing_of_the_backend(tmp_path: Path) -> None:
    failure = Failure(
        kind=FailureKind.KEY_REFUSED, message="Incorrect API key: sk-abc", code="sk-abc", param="p"
    )
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
        await bench.fail(await bench.next_task(), failure)
        response = await call
    assert response.status_code == 502
    assert "sk-abc" not in response.text
    assert response.headers["x-should-retry"] == "false"


async def test_the_first_terminal_record_decides(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("first"))
        await bench.fail(task, Failure(kind=FailureKind.SERVER_ERROR, message="second"))
        assert (await call).json()["choices"][0]["message"]["content"] == "first"


@pytest.mark.parametrize("same_partition", [False, True])
async def test_q12_a_reply_reaches_the_replica_that_asked(tmp_path: Path, same_partition: bool) -> None:
    """Records of everybody's tasks lie in one log; each replica answers its own clients."""
    instances = ["one", "three" if same_partition else "two"]
    shared = len({instance_partition(name, FLEET) for name in instances}) == 1
    assert shared == same_partition
    bus = new_bus()
    async with (
        ingress_bench(tmp_path, bus=bus, instance=instances[0]) as one,
        ingress_bench(tmp_path, bus=bus, instance=instances[1]) as two,
    ):
        asked = [(bench, f"{bench.port}-{i}") for i in range(4) for bench in (one, two)]
        calls = [asyncio.create_task(_content(bench, name)) for bench, name in asked]
        for _ in asked:
            task = await one.next_task()
            await one.succeed(task, answer_of(task.task.body.inline["messages"][0]["content"]))
        assert await asyncio.gather(*calls) == [name for _, name in asked]


async def _content(bench: Bench, name: str) -> Any:
    async with bench.http() as client:
        body = ask(messages=[{"role": "user", "content": name}])
        response = await client.post("/v1/chat/completions", json=body)
    return response.json()["choices"][0]["message"]["content"]


async def test_s5_hanging_up_closes_and_cancels_the_task(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        async with bench.http() as client:
            call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
            task = await bench.next_task()
            call.cancel()
            await asyncio.wait({call})
        await bench.closed(task, "cancelled")


async def test_the_deadline_is_kept_without_the_logs_word(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        headers = {"x-chimera-deadline-ms": "50"}
        response = await client.post("/v1/chat/completions", json=ask(), headers=headers)
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["type"] == "deadline_exceeded"


async def test_what_is_not_acknowledged_is_refused_and_closed(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.lose_acks(1)
        response = await client.post("/v1/chat/completions", json=ask())
        task = await bench.next_task()
        await bench.closed(task, "cancelled")
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


class LateFault(FakePublisher):
    """Stores lane records, and says only when told to that it heard no acknowledgement."""

    def __init__(self, bus: FakeBus) -> None:
        super().__init__(bus)
        self.give_up = asyncio.Event()

    async def send(self, record: OutRecord, *, timeout_s: float) -> None:
        await super().send(record, timeout_s=timeout_s)
        if ".tasks." in record.topic:
            await self.give_up.wait()
            raise BusError("no acknowledgement was heard")


async def test_an_answer_counts_although_its_acknowledgement_is_lost(tmp_path: Path) -> None:
    bus = new_bus()
    publisher = LateFault(bus)
    async with ingress_bench(tmp_path, bus=bus, publisher=publisher) as bench, bench.http() as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
        task = await bench.next_task()
        await bench.succeed(task, answer_of("it was there after all"))
        listeners = bench.ingress.inbox._listeners
        await eventually(lambda: any(listener.news for listener in listeners.values()))
        publisher.give_up.set()
        assert (await call).status_code == 200
        assert bench.said_of(task, bench.names.control) == []


async def test_r9_a_store_that_takes_nothing_refuses_large_bodies_alone(tmp_path: Path) -> None:
    """A full disk, a folder that is gone: it may be repeated, with the same key, and was once a bare 500."""
    where = tmp_path / "not-a-folder"
    where.write_text("in the way")
    headers = {"idempotency-key": "order-1"}
    async with ingress_bench(tmp_path, blobs=DirectoryBlobStore(where)) as bench, bench.http() as client:

        async def post(**more: str) -> httpx.Response:
            return await client.post("/v1/chat/completions", json=ask(**more), headers=headers)

        refused = await post(user="x" * 300_000)
        small = asyncio.create_task(post())
        await bench.succeed(await bench.next_task(), answer_of("small enough"))
        assert (await small).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
