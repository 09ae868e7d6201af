"""Starts the servers that behave like the real ones, each as a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from infra.launcher import Launcher, module_command, project_environment
from infra.process import free_port
from loadtest.model_server.process import ModelServerProcess

PATIENCE_S = 60.0


class _LikeProcess(ModelServerProcess):
    """On a free loopback port; settings and log are the model server's."""

    module: str

    async def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        command = module_command(self.module, *self._arguments())
        await self._start(command, self._listens, env=project_environment())
        self.port = int(self._port_file.read_text())


class MessagesServerProcess(_LikeProcess):
    """Anthropic's Messages API."""

    module = "tests.backends_like.messages_server"


class ToolServiceProcess(_LikeProcess):
    """A service at `/run`."""

    module = "tests.backends_like.tool_service"

    @property
    def tool_url(self) -> str:
        return f"{self.root_url}/run"


class McpServerProcess(Launcher):
    """The SDK's server over HTTP."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        self._environment = dict(environment)
        super().__init__("the tool server", folder / "mcp.log")

    @property
    def tool_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        command = module_command("tests.backends_like.mcp_server", str(self.port))
        await self._start(command, self._listens, env=project_environment() | self._environment)

    async def _listens(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    if not self.running:
                        raise self._child.failure("did not start") from None
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return
