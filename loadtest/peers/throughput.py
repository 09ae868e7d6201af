"""`chimera loadtest beside`: durable no-op tasks a second, ours and Dramatiq's, in turns."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.process import ChildProcess
from infra.redis import RedisServer, available
from loadtest.durable.run import run_durable
from loadtest.peers.environment import peer_environment, peers_python
from loadtest.stage import load_average

_APP = "loadtest.peers.apps.dramatiq_app"
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Beside:
    """Tasks a second in each round, from the worker's start to the last result or ledger row."""

    ours: tuple[float, ...]
    dramatiq: tuple[float, ...]
    load: str

    def lines(self) -> list[str]:
        ours, theirs = statistics.median(self.ours), statistics.median(self.dramatiq)
        told = f"durable no-op tasks/s, median of {len(self.ours)} rounds: Chimera {ours:.0f}, "
        told += f"Dramatiq + Redis (AOF everysec, stored results, 1 process, 8 threads) {theirs:.0f}; "
        return [f"{told}ratio {ours / theirs:.2f}; load {self.load}"]


async def run_beside(tasks: int, rounds: int, environment: Path, say: Callable[[str], None]) -> Beside:
    """Alternating rounds of the same number of tasks. Raises ValueError where Redis is missing."""
    missing = available()
    if missing is not None:
        raise ValueError(missing)
    python = await peers_python(environment.absolute())
    ours, theirs = [], []
    for _ in range(rounds):
        report = await run_durable(tasks, lambda _: None)
        ours.append(report.tasks / report.seconds)
        theirs.append(await _dramatiq(python, tasks))
        say(f"Chimera {ours[-1]:.0f}/s, Dramatiq {theirs[-1]:.0f}/s")
    return Beside(tuple(ours), tuple(theirs), load_average())


async def _dramatiq(python: Path, tasks: int) -> float:
    with tempfile.TemporaryDirectory(prefix="chimera-dramatiq-") as folder:
        async with RedisServer(Path(folder) / "redis") as redis:
            env = peer_environment(PEER_BROKER_URL=redis.url)
            await _said(python, env, "client", str(tasks))
            worker = ChildProcess("dramatiq", Path(folder) / "worker.log")
            begin = time.monotonic()
            worker.spawn([str(python), "-m", "dramatiq", _APP, "--processes", "1", "--threads", "8"], env)
            try:
                async with asyncio.timeout(_WAIT_S):
                    await _said(python, env, "outcomes", str(tasks))
                return tasks / (time.monotonic() - begin)
            except TimeoutError:
                raise TimeoutError(f"dramatiq did not finish {tasks} tasks: {worker.log_tail()}") from None
            finally:
                await worker.stop(5.0)


async def _said(python: Path, env: Mapping[str, str], *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-m", _APP, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=dict(env),
    )
    try:
        out, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode:
        raise RuntimeError(f"{_APP} {' '.join(arguments)} ended with {process.returncode}")
    return out.decode().strip()
