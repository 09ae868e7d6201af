"""Starts a model server as a process of its own, for tests and benchmarks, and can kill or freeze it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from infra.launcher import Launcher, module_command, project_environment
from loadtest.model_server.attempts import RUNNING, AttemptRecord
from loadtest.model_server.settings import ServerSettings

_START_S = 20.0
_ASK_S = 60.0  # a loaded machine connects late
_POLL_S = 0.01


class ModelServerProcess(Launcher):
    """`async with ModelServerProcess(chunks=64) as server:` runs one on a free loopback port.

    Takes the fields of ServerSettings. After `kill`, `start` brings it back on the same port, with the same
    log file. Not bound to an event loop: fixtures of any scope may hold it.
    """

    def __init__(self, **settings: Any) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="model-server-"))
        self._port_file = self._directory / "port"
        given = {"log_file": self._directory / "log.jsonl", **settings, "port_file": self._port_file}
        self.settings = ServerSettings.model_validate(given)
        self.port = self.settings.port
        super().__init__("the model server", self._directory / "output")

    @property
    def root_url(self) -> str:
        """Where /health, /log, /metrics, /state and /reset are."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes: ends in /v1."""
        return f"{self.root_url}/v1"

    async def start(self) -> None:
        """Returns once it listens. Raises ProcessFailedError, with what it wrote, if it ends before."""
        self._port_file.unlink(missing_ok=True)
        command = module_command("loadtest.model_server", *self._arguments())
        await self._start(command, self._listens, env=project_environment())
        self.port = int(self._port_file.read_text())

    def log(self) -> list[AttemptRecord]:
        """Ended attempts of all its lives, from the file: also while it is frozen or dead.

        The file goes when the `async with` ends, unless `log_file` was given.
        """
        file = self.settings.log_file
        if file is None or not file.exists():
            return []
        return _records(file.read_bytes())

    async def running_attempts(self) -> list[AttemptRecord]:
        """Attempts that it works on now, asked over HTTP."""
        async with httpx.AsyncClient(timeout=_ASK_S) as client:
            answer = await client.get(f"{self.root_url}/log")
        return [record for record in _records(answer.content) if record.outcome == RUNNING]

    async def __aenter__(self) -> Self:
        try:
            return await super().__aenter__()
        except BaseException:
            self._forget_files()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        self._forget_files()

    async def _listens(self) -> None:
        for _ in range(int(_START_S / _POLL_S)):
            if self._port_file.exists():
                return
            if not self.running:
                break
            await asyncio.sleep(_POLL_S)
        raise self._child.failure("did not start")

    def _forget_files(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _arguments(self) -> list[str]:
        fields = self.settings.model_dump(mode="json", exclude_defaults=True) | {"port": self.port}
        return [
            part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))
        ]


def _records(lines: bytes) -> list[AttemptRecord]:
    return [AttemptRecord.model_validate_json(line) for line in lines.splitlines()]
