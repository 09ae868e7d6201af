"""Runs `python -m infra.llama` as a child process and waits until it answers."""

import asyncio
from pathlib import Path

import httpx

from infra.launcher import Launcher, module_command, project_environment
from infra.llama.settings import LlamaSettings
from infra.process import free_port

_POLL_S = 0.02


class LlamaServer(Launcher):
    """One local model server: `async with LlamaServer(settings, log_path=...) as server: server.base_url`.

    Open streams end without [DONE] when it is stopped.
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
        super().__init__(f"model server {settings.alias}", log_path)

    @property
    def origin(self) -> str:
        """`http://127.0.0.1:PORT`, for /health, /slots and /metrics."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, as OpenAI clients want it."""
        return f"{self.origin}/v1"

    async def start(self) -> None:
        """Returns once the model has produced a token. Raises ProcessFailedError and leaves no process."""
        command = module_command("infra.llama", *self.settings.arguments(), "--port", str(self.port))
        await self._start(command, self._serves, env=project_environment())

    async def _serves(self) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._warm_up()
        except (TimeoutError, httpx.HTTPError) as error:
            raise self._child.failure(f"does not answer: {error!r}") from error

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
