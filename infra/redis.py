"""Run a Redis server on loopback, appending every second: what peers of Chimera stand on in comparisons."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from infra.launcher import Launcher
from infra.process import free_port

_READY_TIMEOUT_S = 20.0
_POLL_S = 0.02


def available() -> str | None:
    """Why Redis cannot run here, or None."""
    found = shutil.which("redis-server")
    return None if found else "Redis needs `redis-server` on the PATH (Debian: apt-get install redis-server)"


class RedisServer(Launcher):
    """One server on a port of its own; its append-only file in `data_dir` is kept over kill and start."""

    def __init__(self, data_dir: Path) -> None:
        self._port = free_port()
        self._data_dir = data_dir
        super().__init__(f"redis on port {self._port}", data_dir / "redis.log")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    async def start(self) -> None:
        """Returns when it answers PING, with what the file holds loaded."""
        self._data_dir.mkdir(parents=True, exist_ok=True)
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self._port)]
        command += ["--dir", str(self._data_dir), "--save", "", "--appendonly", "yes"]
        await self._start([*command, "--appendfsync", "everysec"], self._answers)

    async def _answers(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_TIMEOUT_S
        while loop.time() < deadline:
            if not self.running:
                break
            if await _pong(self._port):
                return
            await asyncio.sleep(_POLL_S)
        raise self._child.failure("did not start")


async def _pong(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"+PONG")
