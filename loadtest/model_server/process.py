"""Starts a model server as a process of its own, for tests and benchmarks, and can kill or freeze it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from loadtest.model_server.attempts import RUNNING, AttemptRecord
from loadtest.model_server.settings import ServerSettings

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 20.0
_STOP_S = 5.0
_POLL_S = 0.01


class ModelServerProcess:
    """`async with ModelServerProcess(chunks=64) as server:` runs one on a free loopback port.

    Takes the fields of ServerSettings. After `kill`, `start` brings it back on the same port, with the same
    log file. Not bound to an event loop: fixtures of any scope may hold it.
    """

    def __init__(self, **settings: Any) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="model-server-"))
        self._port_file = self._directory / "port"
        self.stderr_file = self._directory / "stderr"
        given = {"log_file": self._directory / "log.jsonl", **settings, "port_file": self._port_file}
        self.settings = ServerSettings.model_validate(given)
        self.port = self.settings.port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def root_url(self) -> str:
        """Where /health, /log, /metrics, /state and /reset are."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes: ends in /v1."""
        return f"{self.root_url}/v1"

    @property
    def pid(self) -> int:
        return self._running().pid

    async def start(self) -> None:
        """Returns once it listens. Raises RuntimeError, with what it wrote to stderr, if it ends before."""
        self._port_file.unlink(missing_ok=True)
        self._process = self._spawned()
        for _ in range(int(_START_S / _POLL_S)):
            if self._port_file.exists():
                self.port = int(self._port_file.read_text())
                return
            if self._process.poll() is not None:
                break
            await asyncio.sleep(_POLL_S)
        self.kill()
        raise RuntimeError(f"the model server did not start: {self.stderr_file.read_text()}")

    def log(self) -> list[AttemptRecord]:
        """Ended attempts of all its lives, from the file: also while it is frozen or dead.

        The file goes when the `async with` ends, unless `log_file` was given.
        """
        file = self.settings.log_file
        if file is None or not file.exists():
            return []
        return _records(file.read_bytes())

    async def running(self) -> list[AttemptRecord]:
        """Attempts that it works on now, asked over HTTP."""
        async with httpx.AsyncClient(timeout=_STOP_S) as client:
            answer = await client.get(f"{self.root_url}/log")
        return [record for record in _records(answer.content) if record.outcome == RUNNING]

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; the port refuses connections when this returns."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes more than five seconds; harmless if it is dead."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        for _ in range(int(_STOP_S / _POLL_S)):
            if process.poll() is not None:
                self._process = None
                return
            await asyncio.sleep(_POLL_S)
        self.kill()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            if self._process is not None:
                self.kill()
            self._forget_files()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        self._forget_files()

    def _forget_files(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _spawned(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "loadtest.model_server", *self._arguments()]
        with self.stderr_file.open("ab") as output:
            return subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the model server is not running")
        return self._process

    def _arguments(self) -> list[str]:
        fields = self.settings.model_dump(mode="json", exclude_defaults=True) | {"port": self.port}
        return [
            part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))
        ]


def _records(lines: bytes) -> list[AttemptRecord]:
    return [AttemptRecord.model_validate_json(line) for line in lines.splitlines()]
