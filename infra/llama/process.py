"""Runs `python -m infra.llama` as a child process and waits until it answers."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Self

import httpx

from infra.llama.settings import LlamaSettings
from infra.process import ChildProcess, free_port

_PROJECT = Path(__file__).resolve().parents[2]
_POLL_S = 0.02
_STOP_GRACE_S = 5.0


class LlamaServer:
    """One local model server: `async with LlamaServer(settings, log_path=...) as server: server.base_url`.

    Bound to no event loop. Start it from the main thread: it is killed with the thread that started it.
    A restart (`stop` or `kill`, then `start`) keeps the port.
    """

    def __init__(
        self,
        settings: LlamaSettings,
        *,
        log_path: Path,
        port: int | None = None,
        start_timeout_s: float = 60.0,
    ) -> None:
        self.settings = settings
        self.port = free_port() if port is None else port
        self._start_timeout_s = start_timeout_s
        self._child = ChildProcess(f"model server {settings.alias}", log_path)

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:PORT`, for /health, /slots and /metrics."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, as OpenAI clients want it."""
        return f"{self.origin}/v1"

    @property
    def pid(self) -> int:
        """Process id; ProcessFailedError when it is not running."""
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def log_path(self) -> Path:
        return self._child.log_path

    async def start(self) -> None:
        """Returns once the model has produced a token. Raises ProcessFailedError and leaves no process."""
        command = [sys.executable, "-m", "infra.llama", *self.settings.arguments(), "--port", str(self.port)]
        path = os.pathsep.join(filter(None, (str(_PROJECT), os.environ.get("PYTHONPATH"))))
        self._child.spawn(command, env=os.environ | {"PYTHONPATH": path})
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._warm_up()
        except (TimeoutError, httpx.HTTPError) as error:
            failure = self._child.failure(f"does not answer: {error!r}")
            await self._child.kill()
            raise failure from error
        except BaseException:
            await self._child.kill()
            raise

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough. Open streams end without [DONE]."""
        await self._child.stop(_STOP_GRACE_S)

    async def kill(self) -> None:
        """SIGKILL: what a crash looks like to its clients."""
        await self._child.kill()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _warm_up(self) -> None:
        question = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        async with httpx.AsyncClient(trust_env=False, timeout=self._start_timeout_s) as client:
            while not await self._healthy(client):
                if not self._child.running:
                    raise self._child.failure("ended while starting")
                await asyncio.sleep(_POLL_S)
            answer = await client.post(f"{self.base_url}/chat/completions", json=question)
            answer.raise_for_status()

    async def _healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(f"{self.origin}/health")).is_success  # 503 while it loads
        except httpx.TransportError:
            return False
