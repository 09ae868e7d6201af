"""What reaches the edge and is no request yet: bytes that are no HTTP, endless heads, bodies that stall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from services.ingress.body import read_body
from services.ingress.errors import ApiError
from services.ingress.http_protocol import MOST_HEAD_BYTES, EdgeProtocol
from services.runtime.health import health_app, serving
from tests.chat_bodies import ask
from tests.ingress_bench import FLEET, Bench, ingress_bench

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\n"


async def told(bench: Bench, said: bytes) -> bytes:
    """All that the edge answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    try:
        async with asyncio.timeout(30):
            writer.write(said)
            return await reader.read()
    finally:
        writer.close()


def refusal(answer: bytes) -> tuple[bytes, str]:
    """Status line and code of an answer in the OpenAI shape that ends its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    assert b"connection: close" in head
    error = orjson.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return head.split(b"\r\n")[0], error["code"]


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00 no words\r\n\r\n",
        HEAD + b"x-request-id: a\x01b\r\n\r\n",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
    ],
)
async def test_what_is_no_http_is_refused_in_the_shape(tmp_path: Path, said: bytes) -> None:
    async with ingress_bench(tmp_path) as bench:
        assert refusal(await told(bench, said)) == (b"HTTP/1.1 400 Bad Request", "invalid_http")


async def test_headers_without_end_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(HEAD + b"x-long: ")
        for _ in range(MOST_HEAD_BYTES // 4096):
            writer.write(b"a" * 4096)
            await writer.drain()
        async with asyncio.timeout(30):
            status, code = refusal(await reader.read())
        writer.close()
    assert (status.split()[1], code) == (b"431", "headers_too_large")


async def test_a_head_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EdgeProtocol, "head_s", 0.1)
    async with ingress_bench(tmp_path) as bench:
        status, code = refusal(await told(bench, HEAD))
        assert (status.split()[1], code) == (b"408", "request_timeout")
        assert await told(bench, b"") == b""  # a connection without a word


async def test_what_was_on_its_way_when_the_service_stops_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connected but not asked yet, which no balancer can see: answered, and told that it was the last one."""
    monkeypatch.setattr(EdgeProtocol, "last_head_s", 5.0)
    request = b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n"

    async def well() -> tuple[bool, dict[str, object]]:
        return True, {}

    stack = AsyncExitStack()
    app = health_app(alive=well, ready=well)
    port = await stack.enter_async_context(serving(app, host="127.0.0.1", port=0, http=EdgeProtocol))
    fresh, kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    kept[1].write(request)
    assert b"connection: close" not in await kept[0].readuntil(b'{"status":"ok"}')
    stopping = asyncio.create_task(stack.aclose())
    while await accepts(port):
        await asyncio.sleep(0.02)
    for reader, writer in (fresh, kept):
        writer.write(request)
        last = await reader.read()
        assert last.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in last
        writer.close()
    await stopping


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (ConnectionRefusedError, ConnectionResetError):  # reset: queued at a socket that then closed
        return False
    writer.close()
    return True


async def test_a_body_that_stalls_is_given_up() -> None:
    async def receive() -> dict[str, object]:
        if sent:
            await asyncio.Event().wait()
        sent.append(1)
        return {"type": "http.request", "body": b"{", "more_body": True}

    sent: list[int] = []
    with pytest.raises(ApiError, match=r"within 0\.05 s") as refused:
        await read_body({}, receive, within_s=0.05)
    assert (refused.value.status, refused.value.code) == (408, "request_timeout")


async def test_a_body_that_outlasts_its_deadline_is_told_so_and_sends_nothing(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield orjson.dumps(ask())[:10]
        await asyncio.sleep(0.05)
        yield orjson.dumps(ask())[10:]

    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        headers = {"x-chimera-deadline-ms": "10"}
        answer = await client.post("/v1/chat/completions", content=pieces(), headers=headers)
        lanes = [bench.names.lane(pool.name, "interactive") for pool in FLEET.pools]
        assert [record for lane in lanes for record in bench.bus.records(lane)] == []
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
