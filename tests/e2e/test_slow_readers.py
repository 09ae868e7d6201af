"""Clients that hardly read, and prompts that are large: the ingress stays small, the others' chats go on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import psutil
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from loadtest.kills.evidence import read_all
from schemas.payload import REQUEST_LIMIT_BYTES
from tests.e2e.fault_fleet import ask, ask_streamed, body, outcomes, pid_of, text_of
from tests.e2e.staged import PATIENT, Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 1024 * 1024
PIECE_BYTES, PIECES, CHOICES = 4096, 1_000, 8
ANSWER_BYTES = PIECE_BYTES * PIECES * CHOICES  # more than sockets and the bound of a stream hold together
GROWTH_BYTES = 24 * MIB  # measured: 10, and 42 without the bound
TOO_LARGE = 9 * MIB
WORDS = 300_000  # 1.7 MB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    workdir = tmp_path_factory.mktemp("slow-readers")
    async with scripted_fleet(workdir, "kafka", context_tokens=2 * WORDS, timeouts=PATIENT) as running:
        yield running


@dataclass(slots=True)
class SlowReader:
    """A socket whose own buffer is small; what it has read so far."""

    socket: socket.socket
    read: bytearray

    @asynccontextmanager
    async def dripping(self) -> AsyncIterator[None]:
        """1 kB a second, until the other side ends it or the block is left."""
        task = asyncio.create_task(self._drip())
        try:
            yield
        finally:  # before the socket is closed: a read left behind would spoil the loop for the next socket
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _drip(self) -> None:
        while await self.some(256):
            await asyncio.sleep(0.25)

    async def some(self, most: int) -> int:
        """How many bytes came; 0 at the end, also where the connection was reset."""
        try:
            piece = await asyncio.get_running_loop().sock_recv(self.socket, most)
        except ConnectionResetError:
            return 0
        self.read += piece
        return len(piece)


@asynccontextmanager
async def slow_reader(fleet: Scripted, marker: str, script: dict[str, Any]) -> AsyncIterator[SlowReader]:
    """A streamed chat that is sent, and not read yet."""
    raw = json.dumps(body(marker, script, stream=True) | {"n": CHOICES}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: {marker}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await loop.sock_connect(made, ("127.0.0.1", fleet.stage.port))
        await loop.sock_sendall(made, head.encode() + raw)
        yield SlowReader(made, bytearray())


async def shown(fleet: Scripted, name: str) -> float:
    """A figure of the ingress that has no labels."""
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        text = (await client.get(f"{fleet.stage.url}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name)


def large_stream() -> dict[str, Any]:
    return {"text": "x" * PIECE_BYTES * PIECES, "chunks": PIECES, "chunk_interval_s": 0.01}


async def cut_off(fleet: Scripted, marker: str) -> str:
    """The ingress's log line of the call, once there is one."""
    path = fleet.stage.state.logs / "ingress.log"

    async def look() -> str | None:
        lines = [line for line in path.read_text().splitlines() if marker in line and '"request"' in line]
        return lines[0] if lines else None

    return await until(look, f"the log line of {marker}")


async def test_s10_a_reader_of_a_kilobyte_a_second_is_cut_off_and_nobody_else_notices(
    fleet: Scripted,
) -> None:
    marker, before = new_marker(), await shown(fleet, "chimera_slow_readers_total")
    ingress = psutil.Process(pid_of(fleet, "ingress"))
    await ask_streamed(fleet.stage.url, body(new_marker(), stream=True))  # imports and buffers are there
    start_bytes, most_bytes = ingress.memory_info().rss, 0
    async with slow_reader(fleet, marker, large_stream()) as reader, reader.dripping():
        while not fleet.attempts(marker):
            other = new_marker()
            fields = body(other, {"text": f"a {other} b", "chunks": 3, "chunk_interval_s": 0.05}, stream=True)
            assert await ask_streamed(fleet.stage.url, fields) == f"a {other} b"
            most_bytes = max(most_bytes, ingress.memory_info().rss)
        print(f"the ingress grew by {(most_bytes - start_bytes) / MIB:.1f} MiB")
        assert most_bytes - start_bytes < GROWTH_BYTES
        assert '"slow_reader"' in await cut_off(fleet, marker)
    (attempt,) = fleet.attempts(marker)
    assert attempt.outcome == "disconnected"
    assert attempt.chunks < PIECES * CHOICES
    assert await first_outcome(fleet, marker) == "TaskClosed"
    assert await shown(fleet, "chimera_slow_readers_total") == before + 1


async def first_outcome(fleet: Scripted, marker: str) -> str:
    async def look() -> str | None:
        return next(iter((await outcomes(fleet, [marker]))[marker]), None)

    return await until(look, f"the outcome of {marker}")


async def test_s10_a_reader_that_wakes_up_is_told_why_its_stream_ends(fleet: Scripted) -> None:
    """If it makes room within 5 s: the ingress waits no longer, and this process may not have run in them."""

    async def last_word() -> bytes | None:
        marker = new_marker()
        async with slow_reader(fleet, marker, large_stream()) as reader:
            await fleet.ended(marker)
            while await reader.some(MIB) and not reader.read.endswith(b"0\r\n\r\n"):
                pass
        assert len(reader.read) < ANSWER_BYTES
        return bytes(reader.read) if reader.read.endswith(b"0\r\n\r\n") else None

    read = await until(last_word, "a stream that ends with a word")
    lines = [line for line in read.split(b"\r\n") if line.startswith(b"data: ")]
    events = [orjson.loads(event[6:]) for event in lines[-1].split(b"\n\n") if event]
    assert events[-1]["error"]["code"] == "slow_reader"


async def test_q11_a_large_prompt_arrives_whole_and_the_others_go_on(fleet: Scripted) -> None:
    marker, prompt = new_marker(), "word " * WORDS
    fields = body(marker, {"text": marker, "delay_s": 1.0}) | {"max_tokens": 5}
    fields["messages"] = [{"role": "user", "content": prompt}]
    async with httpx.AsyncClient(timeout=90.0, trust_env=False) as client:
        headers = {"x-request-id": marker}
        url = f"{fleet.stage.url}/v1/chat/completions"
        large = asyncio.create_task(client.post(url, json=fields, headers=headers))
        answered = 0
        while not large.done():
            other = new_marker()
            assert text_of(await ask(fleet.stage.url, body(other))) == other
            answered += not large.done()
        assert text_of(await large) == marker
        assert answered > 0
        refused = await client.post(url, content=b"x" * TOO_LARGE)
    (attempt,) = await fleet.ended(marker)
    assert attempt.tokens_in == WORDS
    assert await _claimed_bytes(fleet, marker) > len(prompt)
    assert refused.status_code == 413
    assert str(REQUEST_LIMIT_BYTES) in refused.json()["error"]["message"]


async def _claimed_bytes(fleet: Scripted, marker: str) -> int:
    """What the claim in the task's lane record says of the size of its body."""
    lane = fleet.names.lane("scripted", "interactive")
    for record in await read_all(fleet.stage.bootstrap_servers, [lane], fleet.stage.fleet.partitions):
        if dict(record.headers).get("request_id") == marker.encode():
            return int(orjson.loads(record.value)["body"]["claim"]["size"])
    raise AssertionError(f"no lane record of {marker}")
