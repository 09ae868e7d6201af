"""What every launcher of one server has in common: `async with`, and what faults do to it."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.process import ChildProcess

_PROJECT = Path(__file__).resolve().parents[1]


class Launcher(ABC):
    """One server as a child process, on a port that it keeps over restarts. A launcher says how it starts.

    Not bound to an event loop. Start it from the main thread: it is killed with the thread that started it.
    """

    stop_grace_s = 5.0

    def __init__(self, name: str, log_path: Path) -> None:
        self._child = ChildProcess(name, log_path)

    @property
    def pid(self) -> int:
        """Process id; ProcessFailedError when it does not run."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """True from start to exit, also while frozen."""
        return self._child.running

    @property
    def log_path(self) -> Path:
        """What it wrote to stdout and stderr, over restarts."""
        return self._child.log_path

    @abstractmethod
    async def start(self) -> None:
        """Returns when it serves. Otherwise raises ProcessFailedError with its log, and leaves no process."""

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL by pid after `stop_grace_s`; nothing when it does not run."""
        await self._child.stop(self.stop_grace_s)

    async def kill(self) -> None:
        """SIGKILL by pid: what a crash looks like to its clients."""
        await self._child.kill()

    async def restart(self) -> None:
        """Stop if running, then start on the same port."""
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._child.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self._child.thaw()

    def rss_bytes(self) -> int:
        """Resident memory."""
        return self._child.rss_bytes()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(
        self,
        command: Sequence[str],
        serves: Callable[[], Awaitable[None]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Spawns, and waits for `serves`; where that raises, no process is left."""
        self._child.spawn(command, env=env)
        try:
            await serves()
        except BaseException:
            await self._child.kill()
            raise


def module_command(name: str, *arguments: str) -> list[str]:
    """Runs a module of this project with this interpreter; it needs `project_environment`."""
    return [sys.executable, "-m", name, *arguments]


def project_environment() -> dict[str, str]:
    """This process's environment, with the project to be imported from whatever folder."""
    path = os.pathsep.join(filter(None, (str(_PROJECT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path}
