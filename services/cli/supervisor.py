"""Keeps processes alive: watched, started again after a pause, stopped by the pid that was started."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx

from infra.process import ChildProcess
from services.cli.processes import ProcessSpec
from services.runtime.lifecycle import CONFIG_ERROR_EXIT

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
STEADY_S = 5.0  # what lived for so long did not fail to start: the pause begins small again
POLL_S = 0.1
HTTP_TIMEOUT_S = 2.0


class Supervised:
    """One process that must be there. `say` gets a line for what an operator would want to know."""

    def __init__(self, spec: ProcessSpec, log_dir: Path, say: Callable[[str], None]) -> None:
        self.spec = spec
        self._say = say
        self._child = ChildProcess(spec.name, log_dir / f"{spec.name}.log")
        self._watch: asyncio.Task[None] | None = None
        self.fatal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child.running else None

    async def start(self) -> None:
        """Returns when the process is ready; raises ProcessFailedError with the tail of its log otherwise."""
        self._spawn()
        await self._until_ready()
        self._watch = asyncio.create_task(self._keep_alive(), name=f"watch {self.spec.name}")

    async def stop(self) -> None:
        """SIGTERM, a grace, SIGKILL: by pid. Nothing is started again afterwards."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self._child.stop(self.spec.stop_grace_s)

    def _spawn(self) -> None:
        self._child.spawn(self.spec.command, {**os.environ, **self.spec.env})

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.spec.ready_s
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, trust_env=False) as client:
            while loop.time() < deadline:
                if not self._child.running:
                    raise self._child.failure("ended while starting")
                if await _answers(client, self.spec.ready_url):
                    return
                await asyncio.sleep(POLL_S)
        raise self._child.failure(f"not ready within {self.spec.ready_s:.0f} s ({self.spec.ready_url})")

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, started = FIRST_PAUSE_S, loop.time()
        while True:
            while self._child.running:
                await asyncio.sleep(POLL_S)
            code = await self._child.stop(0)
            if code == CONFIG_ERROR_EXIT:
                self.fatal.set_result(str(self._child.failure("refused its configuration")))
                return
            if loop.time() - started > STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._say(f"{self.spec.name} ended with exit code {code}; starting it again in {pause_s:.1f} s")
            pause_s = await self._start_again(pause_s)
            started = loop.time()

    async def _start_again(self, pause_s: float) -> float:
        """Pauses and spawns until there is a process; returns the pause before the next one."""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                self._spawn()
            except OSError as fault:  # no memory, no process, no disk: it may pass
                self._say(f"{self.spec.name} cannot be started: {fault}; trying again in {pause_s:.1f} s")
            else:
                return pause_s


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def side_by_side(*work: Coroutine[Any, Any, None]) -> None:
    """Runs all of it. The first failure ends the rest, and is raised once that has ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task.done() and task.exception() is not None]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in failed:
        task.result()


async def start_all(processes: list[Supervised], say: Callable[[str], None]) -> None:
    """Starts them side by side. Raises the first failure as soon as there is one; stops nothing."""
    loop = asyncio.get_running_loop()

    async def start(process: Supervised) -> None:
        begun = loop.time()
        await process.start()
        say(f"{process.spec.name} ready in {loop.time() - begun:.1f} s (pid {process.pid})")

    await side_by_side(*(start(process) for process in processes))


async def stop_all(processes: list[Supervised]) -> None:
    await asyncio.gather(*(process.stop() for process in processes))
