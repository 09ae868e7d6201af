"""What keeps the processes of `chimera up` alive: real processes that end, fail, or cannot be started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.process import ProcessFailedError, free_port
from services.cli.processes import ProcessSpec
from services.cli.supervisor import Supervised, start_all, stop_all
from tests.ingress_bench import eventually

PATIENCE_S = 30.0


def spec_of(name: str, *command: str, port: int = 1) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, *command), f"http://127.0.0.1:{port}/", 10 * PATIENCE_S, 5.0)


def server(name: str) -> ProcessSpec:
    port = free_port()
    return spec_of(name, "-m", "http.server", str(port), "--bind", "127.0.0.1", port=port)


@pytest.fixture
async def said() -> list[str]:
    return []


@pytest.fixture
async def served(tmp_path: Path, said: list[str]) -> AsyncIterator[Supervised]:
    """A supervised process that serves; it logs below `tmp_path`."""
    process = Supervised(server("served"), tmp_path / "logs", said.append)
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


def killed(process: Supervised) -> int:
    assert process.pid is not None
    os.kill(pid := process.pid, signal.SIGKILL)
    return pid


async def test_a_process_that_died_is_started_again(served: Supervised, said: list[str]) -> None:
    old = killed(served)
    await eventually(lambda: served.pid not in (None, old))
    assert ["ended with exit code -9" in line for line in said] == [True]


async def test_a_process_that_cannot_be_started_is_tried_again(
    served: Supervised, said: list[str], tmp_path: Path
) -> None:
    """A full disk, say: here its log directory is not to be had for a while."""
    logs, aside = tmp_path / "logs", tmp_path / "aside"
    logs.rename(aside)
    logs.write_text("no directory")
    old = killed(served)
    await eventually(lambda: any("cannot be started" in line for line in said))
    assert served.pid is None
    logs.unlink()
    aside.rename(logs)
    await eventually(lambda: served.pid not in (None, old))


async def test_the_first_failure_of_a_start_is_heard_while_others_still_start(tmp_path: Path) -> None:
    said: list[str] = []
    slow = Supervised(spec_of("slow", "-c", "import time; time.sleep(600)"), tmp_path, said.append)
    broken = Supervised(spec_of("broken", "-c", "raise SystemExit('no such model')"), tmp_path, said.append)
    fine = Supervised(server("fine"), tmp_path, said.append)
    try:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ProcessFailedError, match="no such model"):
                await start_all([slow, broken, fine], said.append)
        assert slow.pid is not None  # what runs is stopped by whoever gives up
    finally:
        await stop_all([slow, broken, fine])
    assert slow.pid is None
    assert fine.pid is None
