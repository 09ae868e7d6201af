"""Backends before the first task, and those that load their model again (CASES O4, R4)."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from infra.llama.process import LlamaServer
from infra.llama.settings import LlamaSettings
from infra.process import free_port
from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, TaskFailed, TaskSucceeded
from services.adapters.model_backends.server_look import ServerLook
from services.core.backend_metrics import ServerLoad
from services.core.fleet import Timeouts
from services.ports import MetricsAbsent
from services.worker_pools.backend_gauges import BackendGauges
from services.worker_pools.warm_up import WARM_UP_ATTEMPT
from tests.integration.backend_rig import (
    SEVERAL,
    MoodyServer,
    backend_rig,
    backends_of,
    moody_server,
    state_of,
)
from tests.integration.worker_rig import WorkerRig, scripted, text_of, until

PATIENT = replace(SEVERAL, timeouts=Timeouts(connect_s=2, first_token_s=20, idle_s=20, total_s=60))


async def begun(rig: WorkerRig) -> asyncio.Task[object]:
    """A worker that is started and not yet ready."""
    working: asyncio.Task[object] = asyncio.create_task(rig.work())
    await until(lambda: rig._workers)
    return working


async def test_every_backend_is_warmed_once_before_the_first_task(tmp_path: Path) -> None:
    async with (
        ModelServerProcess(chunks=2, ttft_s=0.4) as server,
        ModelServerProcess(chunks=2, ttft_s=0.4) as other,
        backend_rig([server.root_url, other.root_url], tmp_path, PATIENT, watched=True) as rig,
    ):
        waiting = [await rig.submit() for _ in range(6)]
        await rig.work()
        for task in waiting:
            assert isinstance(await rig.end(task), TaskSucceeded)
        await until(lambda: all(backends_of(rig).presence(url) == "ready" for url in rig.pool.base_urls))
        for each in (server, other):
            first, *rest = sorted(each.log(), key=lambda record: record.started_s)
            assert (first.attempt or "").startswith(WARM_UP_ATTEMPT)
            assert first.tokens_out <= 1
            assert all(one.started_s >= (first.ended_s or 0) for one in rest)
            assert not [one for one in rest if (one.attempt or "").startswith(WARM_UP_ATTEMPT)]


async def test_connections_are_opened_early_sized_and_shown(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    pool = replace(SEVERAL, slots=6, warm_up=False)
    async with backend_rig([server.root_url], tmp_path, pool, watched=True) as rig:
        await rig.work()
        connections = rig.watched["connections"]
        assert connections.open_count(server.root_url) == pool.slots
        assert server.log() == []  # no warm-up was asked for
        tasks = [await rig.submit(scripted(delay_s=0.3)) for _ in range(3)]
        await until(lambda: state_of(rig).in_flight == 3)
        gauges = BackendGauges(pool.name, backends_of(rig), connections)
        shown = {
            sample.name: sample.value
            for family in gauges.collect()
            for sample in family.samples
            if sample.labels == {"pool": pool.name, "backend": "0"}
        }
        assert shown["chimera_backend_connections_in_use"] == 3
        assert shown["chimera_backend_connections_open"] == pool.slots  # no new one was needed
        assert shown["chimera_backend_tokens_in_flight"] > 0
        for task in tasks:
            await rig.end(task)


async def test_o4_a_model_that_loads_holds_the_queue_and_deadlines_still_end_tasks(tmp_path: Path) -> None:
    async with moody_server() as moody, backend_rig([moody.url], tmp_path, watched=True) as rig:
        moody.loading = True
        moody.hangs.add("/health")  # nobody knows yet what it would say
        working = await begun(rig)
        await rig.submit(deadline_s=0.5)
        await until(rig._workers[0].worker.held)
        await until(lambda: not rig._workers[0].worker.held())
        assert set(moody.asked) <= {"/health", "/metrics"}
        moody.hangs.clear()
        task, late = await rig.submit(), await rig.submit(deadline_s=0.3)
        assert isinstance(await rig.end(late), TaskFailed)
        worker = rig._workers[0].worker
        assert worker.gate() == ("loading",)
        assert worker.ready()["backend_ready"] is False
        assert moody.calls() == 0
        moody.loading = False
        assert text_of(await rig.answer(task)) == "ready"
        await working
        assert worker.gate() == ()


async def test_o4_one_that_loads_again_burns_no_tries(tmp_path: Path) -> None:
    """The tries under way learn of it; everything behind them waits, and nothing ends."""
    async with moody_server() as moody, backend_rig([moody.url], tmp_path, watched=True) as rig:
        running = await rig.work()
        moody.loading = True
        first = await rig.submit()
        await until(lambda: running.worker.gate() == ("loading",))
        waiting = [await rig.submit() for _ in range(10)]
        calls, asked = moody.calls(), len(moody.asked)
        await until(lambda: len(moody.asked) >= asked + 4)  # it is asked whether it serves, and not for work
        assert moody.calls() == calls
        moody.loading = False
        for task in (first, *waiting):
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert {each.task_id for each in rig.of(AttemptFailed)} == {first}
        assert len(rig.of(AttemptFailed)) == 1


async def test_o4_one_that_loads_leaves_the_work_to_the_other(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with (
        moody_server() as moody,
        backend_rig([moody.url, server.root_url], tmp_path, watched=True) as rig,
    ):
        moody.loading = True
        await rig.work()  # ready by the other one alone
        tasks = [await rig.submit() for _ in range(20)]
        for task in tasks:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert moody.calls() == 0
        assert rig.of(AttemptFailed) == []
        assert state_of(rig).health == "unavailable"


@pytest.mark.parametrize("page", ["/metrics", "/health", "/v1/chat/completions"])
async def test_r4_a_page_that_hangs_keeps_no_other_backend_waiting(
    server: ModelServerProcess, tmp_path: Path, page: str
) -> None:
    async with (
        moody_server() as moody,
        backend_rig([moody.url, server.root_url], tmp_path, watched=True, metrics_s=0.05) as rig,
    ):
        moody.hangs.add(page)
        await rig.work()
        tasks = [await rig.submit() for _ in range(12)]
        for task in tasks:
            assert isinstance(await rig.end(task), TaskSucceeded)
        await until(lambda: page in moody.asked)
        await until(lambda: backends_of(rig).loads()[1].running is not None)


async def test_metrics_are_read_where_they_are_and_left_alone_where_not(tmp_path: Path) -> None:
    async with (
        moody_server() as silent,
        moody_server() as telling,
        backend_rig([silent.url, telling.url], tmp_path, watched=True, metrics_s=0.05) as rig,
    ):
        telling.loading = True  # its metrics say 503 as well: that is no reason to leave them alone
        telling.metrics = "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 30\n"
        await rig.work()
        await until(lambda: telling.asked.count("/metrics") > 1)
        telling.loading = False
        await until(lambda: state_of(rig, 1).waiting == 30)
        asked = telling.asked.count("/metrics")
        await until(lambda: telling.asked.count("/metrics") > asked + 3)
        assert silent.asked.count("/metrics") == 1
        calls = silent.calls(), telling.calls()
        for _ in range(6):  # one at a time: only the queue that the server tells of makes the difference
            assert isinstance(await rig.end(await rig.submit()), TaskSucceeded)
        assert (silent.calls() - calls[0], telling.calls() - calls[1]) == (6, 0)


async def look_at(moody: MoodyServer, text: str | None) -> ServerLoad | None:
    moody.metrics, look = text, ServerLook()
    try:
        return await look.load(moody.url)
    finally:
        await look.aclose()


async def test_the_text_of_metrics_is_parsed_whatever_else_is_in_it() -> None:
    async with moody_server() as moody:
        vllm = (
            'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
            'vllm:num_requests_waiting{engine="0",model_name="a \\"quoted\\" one"} 3.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\nnot a metric at all {{{\n'
        )
        assert await look_at(moody, vllm) == ServerLoad(2.0, 3.0, 0.5, None)
        for wrong in (None, "<html>", "vllm:num_requests_running{ 1\n", "up 1\n"):
            with pytest.raises(MetricsAbsent):
                await look_at(moody, wrong)


async def test_presence_is_what_the_pages_say(server: ModelServerProcess) -> None:
    look = ServerLook()
    try:
        assert await look.presence(server.root_url) == "ready"
        assert await look.presence(f"http://127.0.0.1:{free_port()}") == "unreachable"
        async with moody_server() as moody:
            moody.loading = True
            assert await look.presence(moody.url) == "loading"
        with socket.create_server(("127.0.0.1", 0)) as mute:
            assert await look.presence(f"http://127.0.0.1:{mute.getsockname()[1]}") == "silent"
    finally:
        await look.aclose()


async def test_o4_llama_cpp_may_come_late_and_be_restarted(tmp_path: Path) -> None:
    """The real server: its weights load behind the queue, and again after a kill."""
    llama = LlamaServer(LlamaSettings(slots=2, context_per_slot=512), log_path=tmp_path / "llama.log")
    pool = replace(PATIENT, slots=2)
    question = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4, "model": "auto"}
    async with backend_rig([llama.origin], tmp_path, pool, watched=True, metrics_s=0.2) as rig:
        working = await begun(rig)
        early = await rig.submit(question)
        await until(lambda: rig._workers[0].worker.gate() == ("loading",))
        async with llama:
            assert await rig.answer(early)
            await working
            await until(lambda: state_of(rig).waiting is not None)  # llama.cpp's own metrics
            await llama.kill()
            over = await rig.submit(question)
            await until(lambda: backends_of(rig).presence(llama.origin) == "unreachable")
            more = [await rig.submit(question) for _ in range(3)]
            await llama.start()
            for task in (over, *more):
                assert await rig.answer(task)
        away = (FailureKind.UNREACHABLE, FailureKind.OVERLOADED)  # not: a connection that it had closed
        assert {each.task_id for each in rig.of(AttemptFailed) if each.failure.kind in away} == {over}
