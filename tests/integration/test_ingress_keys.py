"""Calls with an Idempotency-Key: run once, joined, replayed, taken over; freed by anything but a success."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.core.placement import stable_partition
from services.ingress.settings import IngressKnobs
from services.ports import KeyRow, StoredOutcome
from tests.chat_bodies import answer_of, ask, events_of, joined_text
from tests.ingress_bench import FLEET, Bench, LaneTask, eventually, eventually_true, ingress_bench, new_bus

CHATS = "/v1/chat/completions"
KEY = {"idempotency-key": "order-1"}


def keyed(client: httpx.AsyncClient, **more: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/v1/chat/completions", json=ask(**more), headers=KEY))


async def key_row(bench: Bench) -> KeyRow:
    """The row that stands; the one offered here never does."""
    offered = KeyRow("offered", "", 0, False, 0)
    row = await SqlIdempotencyStore(bench.database).claim_key("default", "order-1", offered)
    assert row.task_id != "offered"
    return row


async def accepted(bench: Bench) -> None:
    async def look() -> bool:
        return (await key_row(bench)).accepted

    await eventually_true(look)


async def ended(bench: Bench, task: LaneTask, text: str) -> None:
    """A success, and the bookkeeper's row of it."""
    await bench.succeed(task, answer_of(text))
    await bench.bookkept(task)


async def lane_records(bench: Bench) -> int:
    lanes = [name for name in bench.bus._logs if ".tasks.chat" in name]
    return sum(len(bench.bus.records(lane)) for lane in lanes)


async def test_r6_a_success_is_replayed_and_not_run_again(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        first = keyed(client)
        task = await bench.next_task()
        assert task.task.keep_answer
        await ended(bench, task, "once")
        assert (await first).status_code == 200
        again = await keyed(client)
        assert again.json() == answer_of("once")
        assert again.headers["x-chimera-pool"] == "chat-fast"
        assert await lane_records(bench) == 1


class WatchedStore(SqlIdempotencyStore):
    """Counts how often the outcome of another call's task was looked for in vain."""

    waited = 0

    async def outcome(self, task_id: str) -> StoredOutcome | None:
        found = await super().outcome(task_id)
        self.waited += found is None
        return found


async def test_r6_a_second_call_joins_on_any_replica(tmp_path: Path) -> None:
    bus = new_bus()
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/chimera.db")
    watched = WatchedStore(database)
    async with (
        ingress_bench(tmp_path, bus=bus, instance="one") as one,
        ingress_bench(tmp_path, bus=bus, instance="two", keys=watched) as two,
        one.http() as here,
        two.http() as there,
    ):
        first = keyed(here)
        task = await one.next_task()
        await accepted(one)
        second = keyed(there)
        await eventually(lambda: watched.waited)
        await ended(one, task, "for both")
        assert (await first).json() == (await second).json()
        assert await lane_records(one) == 1
    await database.close()


async def test_s4_a_stream_that_joins_another_call_is_pinged_until_it_is_decided(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, knobs=IngressKnobs(ping_s=0.05)) as bench, bench.http() as client:
        first = keyed(client, stream=True)
        task = await bench.next_task()
        await accepted(bench)
        async with client.stream("POST", CHATS, json=ask(stream=True), headers=KEY) as joined:
            assert joined.status_code == 200
            lines = joined.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": ping", "", ": ping", ""]
            await ended(bench, task, "for both")
            rest = "".join([line + "\n" async for line in lines])
        await first
        assert await lane_records(bench) == 1
    events = events_of(rest)
    assert joined_text(events) == "for both"
    assert events[-1] == "[DONE]"


async def test_s4_a_pinged_stream_runs_the_call_itself_where_the_first_one_failed(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, knobs=IngressKnobs(ping_s=0.05)) as bench, bench.http() as client:
        first = keyed(client, stream=True)
        task = await bench.next_task()
        await accepted(bench)
        async with client.stream("POST", CHATS, json=ask(stream=True), headers=KEY) as second:
            lines = second.aiter_lines()
            assert await anext(lines) == ": ping"
            await bench.fail(task, Failure(kind=FailureKind.SERVER_ERROR, message="no"))
            again = await bench.next_task()
            await bench.succeed(again, answer_of("the second time"))
            rest = "".join([line + "\n" async for line in lines])
        assert '"code":"server_error"' in (await first).text
    assert joined_text(events_of(rest)) == "the second time"


async def test_s4_a_pinged_stream_that_cannot_be_decided_ends_with_the_error(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path, knobs=IngressKnobs(ping_s=0.05)) as bench, bench.http() as client:
        first = keyed(client, stream=True)
        task = await bench.next_task()
        await accepted(bench)
        hurried = KEY | {"x-chimera-deadline-ms": "200"}
        joined = await client.post(CHATS, json=ask(stream=True), headers=hurried)
        await bench.succeed(task, answer_of("ok"))
        await first
    assert joined.text.startswith(": ping\n\n")
    (event,) = events_of(joined.text)
    assert event["error"]["code"] == "deadline"


async def test_another_body_under_the_key_is_refused(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        first = keyed(client)
        task = await bench.next_task()
        other = await keyed(client, temperature=1)
        await ended(bench, task, "ok")
        await first
        after = await keyed(client, temperature=1)
    assert (other.status_code, after.status_code) == (422, 422)
    assert other.json()["error"]["code"] == "idempotency_key_reused"


async def test_a_failure_is_not_replayed_and_frees_the_key(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        first = keyed(client)
        await bench.fail(await bench.next_task(), Failure(kind=FailureKind.SERVER_ERROR, message="no"))
        assert (await first).status_code == 502
        second = keyed(client)
        task = await bench.next_task()
        await ended(bench, task, "the second time")
        assert (await second).status_code == 200


async def test_a_failed_row_of_a_dead_replica_frees_the_key(tmp_path: Path) -> None:
    """Its ingress died before it could: whoever comes next finds the outcome."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        keys = SqlIdempotencyStore(bench.database)
        first = keyed(client)
        task = await bench.next_task()
        standing = await key_row(bench)
        await bench.fail(task, Failure(kind=FailureKind.SERVER_ERROR, message="no"))
        await first
        await keys.claim_key("default", "order-1", standing)
        await bench.bookkept(task)
        second = keyed(client)
        new = await bench.next_task()
        await ended(bench, new, "fresh")
        assert (await second).status_code == 200
    assert new.task.task_id != task.task.task_id


async def test_hanging_up_does_not_cancel_a_keyed_call(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        async with bench.http() as client:
            call = keyed(client)
            task = await bench.next_task()
            await accepted(bench)
            call.cancel()
            await asyncio.wait({call})

        async def released() -> bool:
            return not bench.ingress.inbox._listeners

        await eventually_true(released)
        assert bench.said_of(task, bench.names.control) == []
        await ended(bench, task, "went on")
        async with bench.http() as client:
            assert (await keyed(client)).json() == answer_of("went on")


async def test_an_unaccepted_row_is_taken_over_under_its_own_task_id(tmp_path: Path) -> None:
    """Its replica died between the row and the lane. The record goes to the log that the row's id names."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        keys = SqlIdempotencyStore(bench.database)
        first = keyed(client)
        task = await bench.next_task()
        standing = await key_row(bench)
        await bench.fail(task, Failure(kind=FailureKind.RESET, message="gone"))
        await first
        now_ms = int(time.time() * 1000)
        orphan = KeyRow("0190-orphan", standing.body_sha256, now_ms + 60_000, False, now_ms - 2_000)
        await keys.claim_key("default", "order-1", orphan)
        second = keyed(client)
        taken = await bench.next_task()
        assert taken.task.task_id == "0190-orphan"
        assert taken.headers.deadline_ms == orphan.deadline_ms
        assert taken.headers.result_partition == stable_partition("0190-orphan", FLEET.partitions)
        await accepted(bench)
        await ended(bench, taken, "taken over")
        assert (await second).json() == answer_of("taken over")


async def test_the_first_callers_own_log_is_the_one_that_its_task_id_names(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        call = keyed(client)
        task = await bench.next_task()
        await ended(bench, task, "ok")
        await call
    assert task.headers.result_partition == stable_partition(task.task.task_id, FLEET.partitions)


async def test_an_unacknowledged_keyed_call_is_closed_and_its_key_freed(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.lose_acks(1)
        assert (await keyed(client)).status_code == 503
        task = await bench.next_task()
        await bench.closed(task, "cancelled")
        await bench.bookkept(task)
        again = keyed(client)
        new = await bench.next_task()
        await ended(bench, new, "ok")
        assert (await again).status_code == 200
    assert new.task.task_id != task.task.task_id


async def test_a_replayed_stream_is_rebuilt_from_the_kept_answer(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        first = keyed(client, **options)
        task = await bench.next_task()
        await ended(bench, task, "the kept answer")
        live = events_of((await first).text)
        replayed = events_of((await keyed(client, **options)).text)
    assert joined_text(live) == joined_text(replayed) == "the kept answer"
    assert [e["usage"]["total_tokens"] for e in replayed[:-1] if e.get("usage")] == [10]
    assert replayed[-1] == "[DONE]"


async def test_without_the_database_only_keyed_calls_are_refused(tmp_path: Path) -> None:
    nowhere = Database(f"sqlite+aiosqlite:///{tmp_path}")  # a directory is no database
    async with ingress_bench(tmp_path, keys=SqlIdempotencyStore(nowhere)) as bench, bench.http() as client:
        refused = await keyed(client)
        call = asyncio.create_task(client.post("/v1/chat/completions", json=ask()))
        await bench.succeed(await bench.next_task(), answer_of("ok"))
        ready = await client.get("/readyz")
        assert (await call).status_code == 200
    await nowhere.close()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "database_unavailable"
    assert (ready.status_code, ready.json()["database"]) == (200, "down")


async def test_the_openai_clients_own_header_is_the_key(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        client: AsyncOpenAI = bench.openai(default_headers=KEY)
        async with client:
            call = asyncio.ensure_future(client.chat.completions.create(**ask()))
            task = await bench.next_task()
            await ended(bench, task, "ok")
            await call
            assert (await key_row(bench)).task_id == task.task.task_id
