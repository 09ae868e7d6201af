"""The model server as a process: what it notices, what it logs, and what survives its death."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra.launcher import project_environment
from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from tests.wire import HOST, PATIENCE_S, chat, post, request_bytes

POLL_S = 0.01


class Caller:
    """A connection with one request on it, which can hang up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def call(cls, server: ModelServerProcess, attempt: str, fields: dict[str, Any]) -> Caller:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(request_bytes("/v1/chat/completions", fields, attempt))
        return cls(reader, writer)

    async def hang_up(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(POLL_S)


async def state(server: ModelServerProcess) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.root_url) as client:
        facts: dict[str, Any] = (await client.get("/state")).json()
        return facts


async def until_in_flight(server: ModelServerProcess, attempts: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await state(server))["attempts"] != attempts:
            await asyncio.sleep(POLL_S)


async def ended(server: ModelServerProcess, attempt: str) -> AttemptRecord:
    await eventually(lambda: any(record.attempt == attempt for record in server.log()))
    return next(record for record in server.log() if record.attempt == attempt)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [{"delay_s": 600}, {"ttft_s": 600}, {"hang_after_chunks": 0}, {"hang_after_chunks": 2}]
)
async def test_a_caller_that_hangs_up_stops_the_work(
    server: ModelServerProcess, script: dict[str, Any], stream: bool
) -> None:
    caller = await Caller.call(server, "gone", chat(script, stream=stream, x_marker="m-1"))
    await until_in_flight(server, ["gone"])
    assert [record.attempt for record in await server.running_attempts()] == ["gone"]
    await caller.hang_up()
    record = await ended(server, "gone")
    assert (record.outcome, record.marker, record.ended_s is not None) == ("disconnected", "m-1", True)
    assert (await state(server))["in_flight"] == 0


async def test_a_stream_stops_where_its_caller_left(server: ModelServerProcess) -> None:
    caller = await Caller.call(server, "left", chat({"chunks": 1000, "chunk_interval_s": 0.02}, stream=True))
    raw = b""
    while raw.count(b'"content":"') < 4:  # the role's empty content is the first
        raw += await asyncio.wait_for(caller.reader.read(65536), PATIENCE_S)
    await caller.hang_up()
    record = await ended(server, "left")
    assert record.outcome == "disconnected"
    assert 3 <= record.chunks < 1000
    assert record.tokens_out == record.chunks


async def test_a_hang_keeps_the_connection_open_behind_its_chunks(server: ModelServerProcess) -> None:
    caller = await Caller.call(server, "mute", chat({"hang_after_chunks": 2}, stream=True))
    raw = b""
    while raw.count(b'"content":"') < 3:
        raw += await asyncio.wait_for(caller.reader.read(65536), PATIENCE_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(caller.reader.read(1), 0.2)
    await until_in_flight(server, ["mute"])
    await caller.hang_up()
    assert (await ended(server, "mute")).chunks == 2


async def test_a_slow_reader_stops_the_writer_and_loses_nothing(server: ModelServerProcess) -> None:
    fields = chat({"text": "word " * 60_000, "chunks": 60_000}, stream=True)
    caller = await Caller.call(server, "slow", fields)
    await until_in_flight(server, ["slow"])
    held = (await server.running_attempts())[0].chunks
    assert held < 60_000
    raw = await asyncio.wait_for(caller.reader.read(), PATIENCE_S)
    await caller.hang_up()
    assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert (await ended(server, "slow")).chunks == 60_000


async def test_slots_queue_in_order_and_come_free_when_a_caller_leaves() -> None:
    async with ModelServerProcess(slots=1) as server:
        first = await Caller.call(server, "first", chat({"hang_after_chunks": 0}))
        await until_in_flight(server, ["first"])
        second = await Caller.call(server, "second", chat({"hang_after_chunks": 0}))
        await until_in_flight(server, ["first", "second"])
        third = asyncio.create_task(post(server.port, chat(), attempt="third"))
        await until_in_flight(server, ["first", "second", "third"])
        async with httpx.AsyncClient(base_url=server.root_url) as client:
            lines = (await client.get("/metrics")).text.splitlines()
        assert "llamacpp:requests_processing 1" in lines
        assert "llamacpp:requests_deferred 2" in lines
        await second.hang_up()
        assert (await ended(server, "second")).outcome == "disconnected"
        await first.hang_up()
        assert (await third).status == 200


async def test_the_log_survives_kill_and_is_continued(server: ModelServerProcess) -> None:
    for attempt in ("a", "b"):
        await post(server.port, chat(), attempt=attempt)
    caller = await Caller.call(server, "unfinished", chat({"hang_after_chunks": 0}))
    await until_in_flight(server, ["unfinished"])
    port = server.port
    await server.kill()
    await caller.hang_up()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, port)
    assert [record.attempt for record in server.log()] == ["a", "b"]
    await server.start()
    assert server.port == port
    await post(port, chat(), attempt="c")
    assert [(record.attempt, record.outcome) for record in server.log()] == [
        ("a", "ok"),
        ("b", "ok"),
        ("c", "ok"),
    ]


async def test_frozen_it_says_nothing_and_thawed_it_goes_on(server: ModelServerProcess) -> None:
    server.freeze()
    call = asyncio.create_task(post(server.port, chat(), attempt="patient"))
    done, _ = await asyncio.wait([call], timeout=0.2)
    assert not done
    server.thaw()
    assert (await call).status == 200


async def test_sigterm_ends_what_runs_and_says_so(server: ModelServerProcess) -> None:
    caller = await Caller.call(server, "cut-short", chat({"delay_s": 600}))
    await until_in_flight(server, ["cut-short"])
    await server.stop()
    await caller.hang_up()
    assert [record.outcome for record in server.log()] == ["stopped"]
    assert server.log_path.read_text() == ""


async def test_a_taken_port_is_said(server: ModelServerProcess) -> None:
    with pytest.raises(RuntimeError, match="cannot listen"):
        async with ModelServerProcess(port=server.port):
            pass


_PARENT = """
import asyncio

from loadtest.model_server.process import ModelServerProcess

async def main() -> None:
    async with ModelServerProcess() as server:
        print(server.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def server_of_a_killed_parent(directory: Path) -> psutil.Process:
    environment = project_environment() | {"TMPDIR": str(directory)}
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=environment)
    with parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        assert server.is_running()
        parent.kill()
    return server


def is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def test_it_dies_with_the_test_run_that_started_it(tmp_path: Path) -> None:
    """Even SIGKILL, after which nobody can clean up, leaves no server."""
    server = await asyncio.to_thread(server_of_a_killed_parent, tmp_path)
    await eventually(lambda: is_gone(server))
