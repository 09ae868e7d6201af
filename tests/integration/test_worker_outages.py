"""A worker whose log is away, or that stood still itself: no try dies unheard, no backend is blamed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from loadtest.model_server.process import ModelServerProcess
from schemas.messages import AttemptFailed, AttemptStarted, TaskSucceeded
from services.core.fleet import Timeouts
from tests.integration.worker_rig import POOL, chat, openai_rig, scripted, until

IDLE_S = 0.6


async def test_while_the_log_does_not_hear_a_try_is_announced_before_it_starts(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    one_slot = replace(POOL, slots=1)
    async with openai_rig(server.root_url, tmp_path, one_slot, announce_s=0.2) as rig:
        running = await rig.work()
        first = await rig.submit(scripted(delay_s=0.6))
        second = await rig.submit(chat("waits for the slot"))
        await until(lambda: running.worker.held() == 2)
        rig.bus.freeze()  # the first one's announcement will find nobody
        await until(lambda: len(server.log()) == 1)
        await asyncio.sleep(0.5)
        assert len(server.log()) == 1, "the second has a slot, and is not heard of yet"
        rig.bus.thaw()
        assert isinstance(await rig.end(first), TaskSucceeded)
        end = await rig.end(second)
        assert isinstance(end, TaskSucceeded)
        kinds = [type(record) for record in rig.results(second)]
        assert kinds == [AttemptStarted, TaskSucceeded]


async def test_what_came_while_the_worker_stood_still_is_read_before_the_backend_is_blamed(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    pool = replace(POOL, timeouts=Timeouts(connect_s=1, first_token_s=5, idle_s=IDLE_S, total_s=30))
    async with openai_rig(server.root_url, tmp_path, pool) as rig:
        await rig.work()
        task_id = await rig.submit(scripted(chunks=4, chunk_interval_s=0.25))
        await rig.started(task_id)
        await asyncio.sleep(0.4)  # some content has come
        time.sleep(3 * IDLE_S)  # noqa: ASYNC251 - the whole process stands still, as under SIGSTOP
        assert isinstance(await rig.end(task_id), TaskSucceeded)
        assert not rig.of(AttemptFailed, task_id)
