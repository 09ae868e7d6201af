"""Connections that the server gave up meanwhile: no call is lost to one, and none is sent twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, TaskSucceeded
from services.adapters.model_backends.connections import KEEP_ALIVE_S
from services.adapters.model_backends.openai import OpenAIBackend
from services.ports import BackendFault, ModelCall
from tests.integration.worker_rig import POOL, chat, openai_rig, tries

IDLE_S = 0.3  # a server's; a second in life
LANES, CALLS = 6, 12


async def test_a_connection_closed_instead_of_an_answer_is_a_reset_and_sent_once() -> None:
    async with ModelServerProcess(chunks=1) as server:
        backend = OpenAIBackend(slots=1)

        def call(attempt: str, **script: object) -> ModelCall:
            body = orjson.dumps(chat(x_script=script))
            return ModelCall(server.root_url, "/v1/chat/completions", body, attempt, False, POOL.timeouts)

        await anext(backend.events(call("first")))  # its connection is kept
        with pytest.raises(BackendFault) as caught:
            await anext(backend.events(call("second", close_before=True)))
        assert caught.value.kind is FailureKind.RESET
        assert [record.attempt for record in server.log()] == ["first", "second"]
        await backend.aclose()


async def test_the_owner_of_retries_repeats_it(tmp_path: Path) -> None:
    async with (
        ModelServerProcess(chunks=1) as server,
        openai_rig(server.root_url, tmp_path) as rig,
    ):
        await rig.work()
        task_id = await rig.submit(tries("stale", {"close_before": True}, {}))
        assert isinstance(await rig.end(task_id), TaskSucceeded)
        assert (await rig.failed_try(task_id)).failure.kind is FailureKind.RESET


async def test_spaced_calls_to_a_server_that_closes_idle_connections_lose_none(tmp_path: Path) -> None:
    """Calls come just when it closes: as the wait is random around its own, some meet the closing itself."""
    draw = random.Random(5)
    patient = replace(POOL, timeouts=replace(POOL.timeouts, connect_s=30.0))  # the machine may stand still
    async with (
        ModelServerProcess(chunks=1, keep_alive_s=IDLE_S) as server,
        openai_rig(server.root_url, tmp_path, patient) as rig,
    ):
        await rig.work()

        async def lane() -> list[str]:
            made = []
            for _ in range(CALLS):
                made.append(await rig.submit(chat()))
                await rig.end(made[-1])
                await asyncio.sleep(IDLE_S * draw.uniform(0.9, 1.02))
            return made

        tasks = [task for made in await asyncio.gather(*(lane() for _ in range(LANES))) for task in made]
        for task_id in tasks:
            assert isinstance(await rig.end(task_id), TaskSucceeded)
        failed = rig.of(AttemptFailed)
        assert {failure.failure.kind for failure in failed} <= {FailureKind.RESET}
        assert len(failed) < len(tasks) / 4


def test_our_connections_are_given_up_before_the_servers_give_them_up() -> None:
    """uvicorn and llama.cpp close after 5 s, the others later."""
    assert KEEP_ALIVE_S < 5.0
