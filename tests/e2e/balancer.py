"""A TCP balancer in front of several ingresses: each connection goes to the next one in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Self

_PIECE = 64 * 1024


class Balancer:
    """`async with Balancer(ports) as balancer`: listens on a free loopback port. What has begun stays where
    it is; who is taken out gets no new connections."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._server: asyncio.Server | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self.connections: Counter[int] = Counter()
        self.url = ""

    def take_out(self, port: int) -> None:
        self._ports.remove(port)

    def put_back(self, port: int) -> None:
        self._ports.append(port)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._ports.pop(0)
        self._ports.append(port)
        self.connections[port] += 1
        try:
            back, there = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_copy(reader, there), _copy(back, writer))
            finally:
                there.close()
        except OSError:
            pass  # one of both has gone: so does the other
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE):
        target.write(piece)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
