"""`chimera loadtest kills`: worker, ingress, bookkeeper and broker killed at seeded instants under load."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.kills.check import Verdict, check
from loadtest.kills.client import Clients, Told
from loadtest.kills.evidence import Evidence, gather
from loadtest.kills.schedule import Kill, draw
from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from schemas.topics import TopicNames

VICTIMS = ("worker", "ingress", "bookkeeper", "broker")
PROCESS = {"worker": "worker-chat-fast", "ingress": "ingress", "bookkeeper": "orchestrator"}
SETTLE_S = 180.0
WARM_UP_S = 4.0
FLEET = """
version: 1
prefix: kills.
defaults:
  deadlines_s: {{interactive: 60.0}}
pools:
  - name: chat-fast
    model: breaking
    base_url: {base_url}
    slots: 64
    context_tokens: 8192
"""


@dataclass(frozen=True, slots=True)
class KillOptions:
    """`times` kills of each victim, `gap_s` apart on average, under `rate` chats a second."""

    seed: int = 1
    times: int = 10
    rate: float = 50.0
    gap_s: float = 6.0
    victims: tuple[str, ...] = VICTIMS
    database_url: str | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from a kill to the end of the first chat that was sent after it and answered."""

    victim: str
    seconds: float


@dataclass(frozen=True, slots=True)
class KillReport:
    """What was done, how long each recovery took, what the check found."""

    kills: tuple[Kill, ...]
    recoveries: tuple[Recovery, ...]
    verdict: Verdict

    def lines(self) -> list[str]:
        lines = [f"{name}: {count}" for name, count in self.verdict.counts.items()]
        for victim in sorted({recovery.victim for recovery in self.recoveries}):
            times = [recovery.seconds for recovery in self.recoveries if recovery.victim == victim]
            median, worst = statistics.median(times), max(times)
            lines.append(f"recovery after a kill of {victim}: median {median:.1f} s, worst {worst:.1f} s")
        lines.append(f"breaches: {len(self.verdict.breaches)}")
        return [*lines, *self.verdict.breaches[:20]]


async def run_kills(options: KillOptions, say: Callable[[str], None]) -> KillReport:
    """The whole run on real Kafka, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="chimera-kills-") as folder:
        async with ModelServerProcess(chunks=8, ttft_s=0.08, chunk_interval_s=0.03, jitter=0.5) as server:
            fleet = FLEET.format(base_url=server.base_url)
            stage = Stage(StageOptions(Path(folder), fleet, "kafka", options.database_url), say)
            async with stage:
                return await _run(options, stage, server, say)


async def _run(
    options: KillOptions, stage: Stage, server: ModelServerProcess, say: Callable[[str], None]
) -> KillReport:
    kills = draw(options.victims, options.times, seed=options.seed, gap_s=options.gap_s, start_s=WARM_UP_S)
    clients = Clients(stage.url, options.rate, f"seed{options.seed}")
    load = asyncio.create_task(clients.run())
    begin = time.monotonic()
    struck: list[tuple[Kill, float]] = []
    for kill in kills:
        await asyncio.sleep(max(0.0, begin + kill.at_s - time.monotonic()))
        struck.append((kill, time.time()))
        say(f"{time.monotonic() - begin:6.1f} s: kill -9 of the {kill.victim}")
        await _strike(stage, kill.victim)
    await asyncio.sleep(options.gap_s * 2)
    clients.stop()
    await load
    evidence = await _settled(stage, server)
    verdict = check(evidence, clients.told, server.log())
    return KillReport(tuple(kills), tuple(_recoveries(struck, clients.told)), verdict)


async def _strike(stage: Stage, victim: str) -> None:
    if victim == "broker":
        await stage.broker.kill()
        await stage.broker.start()
        return
    pid = stage.services[PROCESS[victim]].pid
    if pid is not None:  # else it is down already, and its supervisor starts it again
        os.kill(pid, signal.SIGKILL)


async def _settled(stage: Stage, server: ModelServerProcess) -> Evidence:
    """Evidence once every accepted task has a row and no attempt is open, or after the longest wait."""
    names = TopicNames(stage.fleet.prefix)
    pools = [pool.name for pool in stage.fleet.pools]
    deadline = time.monotonic() + SETTLE_S
    while True:
        evidence = await gather(
            stage.bootstrap_servers, names, pools, stage.fleet.partitions, stage.database_url
        )
        open_rows = any(row["state"] == "open" for row in evidence.ledger.values())
        done = evidence.accepted.keys() <= evidence.tasks.keys() and not open_rows
        if (done and not await server.running_attempts()) or time.monotonic() > deadline:
            return evidence
        await asyncio.sleep(2.0)


def _recoveries(struck: Sequence[tuple[Kill, float]], told: Sequence[Told]) -> list[Recovery]:
    recoveries = []
    for kill, at_s in struck:
        later = [one.ended_s - at_s for one in told if one.complete and one.sent_s >= at_s]
        if later:
            recoveries.append(Recovery(kill.victim, min(later)))
    return recoveries
