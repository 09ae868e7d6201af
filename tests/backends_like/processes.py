"""Starts the servers that behave like the real ones, each as a process of its own."""

from __future__ import annotations

from infra.launcher import module_command, project_environment
from loadtest.model_server.process import ModelServerProcess


class MessagesServerProcess(ModelServerProcess):
    """Anthropic's Messages API on a free loopback port; settings and log are the model server's."""

    async def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        command = module_command("tests.backends_like.messages_server", *self._arguments())
        await self._start(command, self._listens, env=project_environment())
        self.port = int(self._port_file.read_text())
