"""The kept HTTP connections to model servers: a pool of their own for each backend, sized, counted.

One backend's hanging connections take no place of another's.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp

from services.adapters.model_backends.http_faults import LIBRARY_ERRORS

# Below the 5 s after which uvicorn and llama.cpp close an idle connection: a request never meets a closing
# one.
KEEP_ALIVE_S = 4.0
SPARE = 4  # beyond the slots: a cancelled try's connection may still be closing when the next one starts
_OPEN_S = 2.0


class BackendConnections:
    """ports.Connections over aiohttp: `slots` and a few spare for each base URL."""

    def __init__(self, slots: int) -> None:
        self._size = slots + SPARE
        self._pools: dict[str, _Pool] = {}

    def session(self, base_url: str) -> aiohttp.ClientSession:
        """Made at the first call: a connector belongs to the loop that runs."""
        return self._pool(base_url).session

    def open_count(self, base_url: str) -> int:
        pool = self._pools.get(base_url)
        return 0 if pool is None else pool.open_count()

    async def open_early(self, base_url: str, count: int) -> int:
        """One request on each of so many connections at once, answered by whatever the server says to it."""
        session = self.session(base_url)
        asked = [_asked(session, f"{base_url}/v1/models") for _ in range(min(count, self._size))]
        return sum(await asyncio.gather(*asked))

    async def aclose(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.session.close()

    def _pool(self, base_url: str) -> _Pool:
        pool = self._pools.get(base_url)
        if pool is None:
            pool = self._pools[base_url] = _Pool(self._size)
        return pool


class _Pool:
    """One session, and the sockets that were made for it."""

    def __init__(self, size: int) -> None:
        self._sockets: set[socket.socket] = set()
        connector = aiohttp.TCPConnector(
            limit=size, keepalive_timeout=KEEP_ALIVE_S, socket_factory=self._made
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    def open_count(self) -> int:
        self._forget_closed()
        return len(self._sockets)

    def _made(self, address: Any) -> socket.socket:
        family, kind, protocol = address[:3]
        made = socket.socket(family, kind, protocol)
        self._forget_closed()
        self._sockets.add(made)
        return made

    def _forget_closed(self) -> None:
        self._sockets = {made for made in self._sockets if made.fileno() >= 0}


async def _asked(session: aiohttp.ClientSession, url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=_OPEN_S)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            await response.read()
    except LIBRARY_ERRORS:
        return False
    return True
