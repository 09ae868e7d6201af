"""Embedding tasks share calls, and nothing else: not a fault, a cancel, a deadline, a slot or a bill."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtest.model_server import words
from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from loadtest.model_server.server import BAD_INPUT
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, TaskFailed, TaskSucceeded
from services.core.fleet import Batching
from tests.integration.worker_rig import PATIENCE_S, POOL, WorkerRig, chat, openai_rig, until

DIMENSIONS = 8
EMBED = replace(
    POOL, capabilities=frozenset({"embed", "chat"}), slots=2, batching=Batching(max_items=32, max_wait_s=0.3)
)

ONLY = replace(EMBED, capabilities=frozenset({"embed"}), slots=1)


@pytest.fixture
async def server() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(embedding_dimensions=DIMENSIONS, chunks=2) as running:
        yield running


@asynccontextmanager
async def working(server: ModelServerProcess, blobs: Path, **pool: Any) -> AsyncIterator[WorkerRig]:
    async with openai_rig(server.root_url, blobs, replace(EMBED, **pool)) as rig:
        await rig.work()
        yield rig


@pytest.fixture
async def rig(server: ModelServerProcess, tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with working(server, tmp_path) as made:
        yield made


async def embed(rig: WorkerRig, given: Any, task_id: str | None = None, **fields: Any) -> str:
    deadline_s = fields.pop("deadline_s", 60.0)
    body = {"model": "auto", "input": given, **fields}
    return await rig.submit(body, kind="embedding", task_id=task_id, deadline_s=deadline_s)


def calls(server: ModelServerProcess) -> list[AttemptRecord]:
    return [record for record in server.log() if record.path.endswith("/embeddings")]


def vector(text: str) -> list[float]:
    return words.vector(text, DIMENSIONS, 0)


async def at_work(server: ModelServerProcess) -> None:
    """Returns when the call is on its way, with all who joined it."""
    async with asyncio.timeout(PATIENCE_S):
        while not await server.running_attempts():
            await asyncio.sleep(0.02)


async def succeeded(rig: WorkerRig, task_id: str) -> TaskSucceeded:
    end = await rig.end(task_id)
    assert isinstance(end, TaskSucceeded), end
    return end


async def test_ready_tasks_share_a_call_and_each_keeps_its_own_vectors_attempt_and_bill(
    server: ModelServerProcess, rig: WorkerRig
) -> None:
    texts = [f"text {number} " + "word " * number for number in range(20)]
    tasks = [await embed(rig, text) for text in texts]
    tasks.append(await embed(rig, ["two of", "one task"]))
    ends = [await succeeded(rig, task_id) for task_id in tasks]
    for text, end in zip(texts, ends, strict=False):
        (row,) = end.answer.inline["data"]
        assert (row["object"], row["index"], row["embedding"]) == ("embedding", 0, vector(text))
        assert end.answer.inline["model"] == EMBED.model
    assert [row["embedding"] for row in ends[-1].answer.inline["data"]] == [
        vector("two of"),
        vector("one task"),
    ]
    made = calls(server)
    assert len(made) <= 3
    named = [attempt for record in made for attempt in (record.attempt, *record.others)]
    assert sorted(map(str, named)) == sorted(end.run.attempt for end in ends)
    assert sum(end.usage.input_tokens for end in ends) == sum(record.tokens_in for record in made)
    assert all(end.usage.estimated == end.answer.inline["usage"].get("estimated", False) for end in ends)
    assert [end for end in ends if end.usage.estimated]


async def test_a_task_alone_has_the_backends_own_count(rig: WorkerRig) -> None:
    end = await succeeded(rig, await embed(rig, "all of my own words"))
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.estimated) == (5, 0, False)
    assert end.answer.inline["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


async def test_one_bad_input_fails_nobody_else(server: ModelServerProcess, rig: WorkerRig) -> None:
    good = [await embed(rig, f"good {number}") for number in range(4)]
    bad = await embed(rig, f"not {BAD_INPUT} this")
    for number, task_id in enumerate(good):
        assert (await succeeded(rig, task_id)).answer.inline["data"][0]["embedding"] == vector(
            f"good {number}"
        )
    end = await rig.end(bad)
    assert isinstance(end, TaskFailed)
    assert (end.failure.kind, end.failure.param, end.tries) == (FailureKind.BAD_REQUEST, "input", 1)
    first = calls(server)[0]
    assert first.others
    assert rig.of(AttemptFailed) == []


async def test_only_calls_that_are_alike_are_joined(server: ModelServerProcess, tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"dimensions": 4}, {"encoding_format": "base64"}, {"user": "u"}]
    async with working(server, tmp_path, slots=16, batching=Batching(max_wait_s=1.0)) as rig:
        tasks = [await embed(rig, "alike", **kind) for kind in kinds for _ in range(2)]
        tasks += [await embed(rig, [1, 2, 3]), await embed(rig, [[1, 2, 3], [4]])]
        ends = [await succeeded(rig, task_id) for task_id in tasks]
    assert [len(end.answer.inline["data"]) for end in ends] == [1] * 9 + [2]
    assert len(ends[2].answer.inline["data"][0]["embedding"]) == 4
    assert [len(record.others) for record in calls(server)] == [1] * 5


async def test_s5_who_is_cancelled_drops_out_and_an_abandoned_call_is_closed(
    server: ModelServerProcess, rig: WorkerRig
) -> None:
    slow = {"delay_s": 1.0}
    tasks = [await embed(rig, f"slow {number}", x_script=slow) for number in range(4)]
    await at_work(server)
    await rig.cancel(tasks[0])  # it has the slot
    gone = await rig.failed_try(tasks[0])
    assert (gone.failure.kind, gone.next) == (FailureKind.CANCELLED, "closed")
    for number, task_id in enumerate(tasks[1:], 1):
        end = await succeeded(rig, task_id)
        assert end.answer.inline["data"][0]["embedding"] == vector(f"slow {number}")
    assert [(record.outcome, len(record.others)) for record in calls(server)] == [("ok", 3)]

    left = [await embed(rig, f"left {number}", x_script={"delay_s": 60.0}) for number in range(3)]
    await at_work(server)
    for task_id in left:
        await rig.cancel(task_id)
    await until(lambda: len(calls(server)) == 2)
    assert calls(server)[1].outcome == "disconnected"


async def test_the_slot_goes_on_to_who_stays_and_none_is_lost(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with openai_rig(server.root_url, tmp_path, ONLY) as rig:
        running = await rig.work()
        tasks = [await embed(rig, f"text {n}", x_script={"delay_s": 1.0}) for n in range(3)]
        await at_work(server)
        assert running.worker.in_flight() == 1
        await rig.cancel(tasks[0])
        await rig.failed_try(tasks[0])
        assert running.worker.in_flight() == 1
        for task_id in tasks[1:]:
            await succeeded(rig, task_id)
        await until(lambda: running.worker.in_flight() == 0)
        assert isinstance(await rig.end(await rig.submit(chat())), TaskSucceeded)


async def test_who_can_join_nothing_waits_for_a_slot(server: ModelServerProcess, tmp_path: Path) -> None:
    """Where no slot is free one task at a time starts without, to join; the bound of calls stands."""
    async with working(server, tmp_path, capabilities=ONLY.capabilities, slots=1) as rig:
        script = {"delay_s": 0.1}
        tasks = [await embed(rig, f"text {n}", dimensions=2 + n // 4, x_script=script) for n in range(12)]
        for task_id in tasks:
            await succeeded(rig, task_id)
    made = sorted(calls(server), key=lambda record: record.started_s)
    assert len(made) <= 6  # one each, were they all here from the start
    assert all((before.ended_s or 0.0) <= after.started_s for before, after in pairwise(made))


async def test_who_is_of_a_kind_that_cannot_join_waits_for_a_slot(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with working(server, tmp_path, capabilities=ONLY.capabilities, slots=1) as rig:
        shared = await embed(rig, "shared", x_script={"delay_s": 0.5})
        await rig.started(shared)
        other = await rig.submit(chat())
        await succeeded(rig, shared)
        await succeeded(rig, other)
    first, second = sorted(server.log(), key=lambda record: record.started_s)
    assert first.path.endswith("/embeddings")
    assert (first.ended_s or 0.0) <= second.started_s


async def test_a_deadline_ends_its_own_task_alone(rig: WorkerRig) -> None:
    script = {"delay_s": 1.5}
    early = await embed(rig, "early", x_script=script, deadline_s=0.8)
    later = await embed(rig, "later", x_script=script)
    end = await rig.end(early)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.DEADLINE
    assert (await succeeded(rig, later)).answer.inline["data"][0]["embedding"] == vector("later")


async def test_the_wait_leaves_the_other_slots_to_chats(server: ModelServerProcess, tmp_path: Path) -> None:
    async with working(server, tmp_path, batching=Batching(max_items=32, max_wait_s=1.0)) as rig:
        tasks = [await embed(rig, f"text {number}") for number in range(6)]
        await rig.started(tasks[-1])
        assert isinstance(await rig.end(await rig.submit(chat())), TaskSucceeded)
        assert calls(server) == []  # they wait, in one of two slots
        for task_id in tasks:
            await succeeded(rig, task_id)
        assert len(calls(server)) == 1


async def test_a_call_is_full_at_its_most_items(server: ModelServerProcess, tmp_path: Path) -> None:
    async with working(server, tmp_path, batching=Batching(max_items=4, max_wait_s=0.3)) as rig:
        tasks = [await embed(rig, ["a", "b"]) for _ in range(4)]
        tasks.append(await embed(rig, ["1", "2", "3", "4", "5"]))
        for task_id in tasks:
            await succeeded(rig, task_id)
        assert sorted(len(record.others) for record in calls(server)) == [0, 1, 1]


async def test_a_backend_that_fails_is_tried_again_by_each(
    server: ModelServerProcess, rig: WorkerRig
) -> None:
    script = {"id": "fails", "tries": [{"status": 500}, {}]}
    tasks = [await embed(rig, f"text {number}", x_script=script) for number in range(3)]
    for number, task_id in enumerate(tasks):
        end = await succeeded(rig, task_id)
        assert end.answer.inline["data"][0]["embedding"] == vector(f"text {number}")
        (failed,) = rig.of(AttemptFailed, task_id)
        assert failed.failure.kind is FailureKind.SERVER_ERROR
    assert calls(server)[0].others


@pytest.mark.parametrize("asked", ["float", "base64", None])
async def test_vectors_come_in_the_callers_encoding_whatever_the_backend_sends(
    rig: WorkerRig, asked: str | None
) -> None:
    numbers = [0.5, -2.0, 3.25]
    packed = base64.b64encode(struct.pack("<3f", *numbers)).decode()
    for sent in (numbers, packed):
        # out of order, as the index allows
        data = [
            {"index": 1, "embedding": [9.0] if sent is numbers else packed},
            {"index": 0, "embedding": sent},
        ]
        raw = orjson.dumps({"object": "list", "data": data}).decode()
        fields = {} if asked is None else {"encoding_format": asked}
        script = {"raw": raw, "content_type": "application/json"}
        end = await succeeded(rig, await embed(rig, ["ab cd", "ef"], x_script=script, **fields))
        got = end.answer.inline["data"]
        assert [row["index"] for row in got] == [0, 1]
        assert got[0]["embedding"] == (packed if asked == "base64" else numbers)
        assert end.usage.estimated
        assert end.answer.inline["usage"]["estimated"] is True


@pytest.mark.parametrize(
    "data",
    [
        [{"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}],
        [{"index": 0, "embedding": ["no number"]}, {"index": 1, "embedding": [1.0]}],
        [{"index": 0, "embedding": "%%%%"}, {"index": 1, "embedding": [1.0]}],
        [{"index": 0}, {"index": 1, "embedding": [1.0]}],
        "none",
    ],
)
async def test_rows_that_are_none_are_no_answer(rig: WorkerRig, data: Any) -> None:
    script = {"raw": orjson.dumps({"data": data}).decode(), "content_type": "application/json"}
    encoding = "base64" if "no number" in str(data) else "float"
    end = await rig.end(await embed(rig, ["one", "two"], x_script=script, encoding_format=encoding))
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.BAD_ANSWER
