"""`chimera loadtest peers`: the same load and the same kills on every system."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.redis import available
from loadtest.kills.schedule import Kill, draw
from loadtest.model_server.attempts import OK
from loadtest.model_server.process import ModelServerProcess
from loadtest.peers.environment import peers_python
from loadtest.peers.systems import CELERY, TASKIQ, ChimeraSystem, PeerSystem, System
from loadtest.stage import load_average

VICTIMS = ("worker", "broker")
WARM_UP_S = 8.0
SETTLE_S = 90.0
_LOOK_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """`times` kills of each victim, `gap_s` apart on average, under `rate` tasks a second."""

    seed: int = 1
    times: int = 4
    rate: float = 20.0
    gap_s: float = 10.0
    visibility_s: int = 10
    environment: Path = Path(".venv-peers")


@dataclass(slots=True)
class PeerReport:
    """doubled: tasks that a model server finished more than once. recovery: seconds, by victim."""

    name: str
    settings: str
    accepted: int = 0
    refused: int = 0
    lost: int = 0
    doubled: int = 0
    runs: int = 0
    recovery: dict[str, list[float]] = field(default_factory=dict)
    load: str = ""

    def line(self) -> str:
        times = "; ".join(
            f"after a {victim}'s death {statistics.median(found):.1f} s (worst {max(found):.1f})"
            for victim, found in sorted(self.recovery.items())
            if found
        )
        return (
            f"{self.name} ({self.settings}): {self.accepted} accepted, {self.refused} refused, "
            f"{self.lost} lost, {self.doubled} done twice ({self.runs} runs in all); {times}; "
            f"load {self.load}"
        )


async def run_peers(options: PeerOptions, say: Callable[[str], None]) -> list[PeerReport]:
    """One after the other. Raises ValueError where Redis is missing."""
    missing = available()
    if missing is not None:
        raise ValueError(missing)
    python = await peers_python(options.environment.absolute())
    reports = []
    for name in ("chimera", "celery", "taskiq"):
        with tempfile.TemporaryDirectory(prefix="chimera-peers-") as folder:
            async with ModelServerProcess(chunks=8, ttft_s=0.2, chunk_interval_s=0.02, jitter=0.5) as server:
                system = _system(name, python, Path(folder), server.base_url, options)
                say(f"{system.name}: {system.settings}")
                reports.append(await _measure(system, server, options, say))
                say(reports[-1].line())
    return reports


def _system(name: str, python: Path, folder: Path, model_url: str, options: PeerOptions) -> System:
    if name == "chimera":
        return ChimeraSystem(folder, model_url)
    spec = CELERY if name == "celery" else TASKIQ
    return PeerSystem(spec, python, folder, model_url, options.visibility_s)


async def _measure(
    system: System, server: ModelServerProcess, options: PeerOptions, say: Callable[[str], None]
) -> PeerReport:
    kills = draw(VICTIMS, options.times, seed=options.seed, gap_s=options.gap_s, start_s=WARM_UP_S)
    length_s = kills[-1].at_s + options.gap_s * 2
    try:
        await system.start()
        load = asyncio.create_task(_load(system, options.rate, length_s))
        struck = await _strike(system, kills, say)
        sent = await load
        accepted = [marker for marker, good in sent.items() if good]
        ended = await _settled(system, accepted)
    finally:
        await system.stop()
    finished = Counter(str(one.marker) for one in server.log() if one.outcome == OK)
    ends = sorted(
        (one.started_s, one.ended_s) for one in server.log() if one.outcome == OK and one.ended_s is not None
    )
    recovery: dict[str, list[float]] = {victim: [] for victim in VICTIMS}
    for victim, at_s in struck:
        # The first run that began after the kill and ended well: until then nobody was served.
        later = [ended_s - at_s for started_s, ended_s in ends if started_s >= at_s]
        if later:
            recovery[victim].append(min(later))
    return PeerReport(
        system.name,
        system.settings,
        accepted=len(accepted),
        refused=len(sent) - len(accepted),
        lost=len(set(accepted) - ended),
        doubled=sum(1 for count in finished.values() if count > 1),
        runs=sum(finished.values()),
        recovery=recovery,
        load=load_average(),
    )


async def _load(system: System, rate: float, length_s: float) -> dict[str, bool]:
    """Markers, and whether each was accepted."""
    begin, sending = time.monotonic(), dict[str, asyncio.Task[bool]]()
    while (elapsed := time.monotonic() - begin) < length_s:
        number = len(sending)
        wait_s = number / rate - elapsed
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        marker = f"peer-{number}"
        sending[marker] = asyncio.create_task(system.send(marker))
    await asyncio.gather(*sending.values())
    return {marker: task.result() for marker, task in sending.items()}


async def _strike(
    system: System, kills: Sequence[Kill], say: Callable[[str], None]
) -> list[tuple[str, float]]:
    begin, struck = time.monotonic(), []
    for kill in kills:
        await asyncio.sleep(max(0.0, begin + kill.at_s - time.monotonic()))
        struck.append((kill.victim, time.time()))
        say(f"{time.monotonic() - begin:6.1f} s: kill -9 of the {kill.victim}")
        await system.kill(kill.victim)
    return struck


async def _settled(system: System, accepted: Sequence[str]) -> set[str]:
    deadline = time.monotonic() + SETTLE_S
    while True:
        ended = await system.outcomes(accepted)
        if len(ended) == len(accepted) or time.monotonic() > deadline:
            return ended
        await asyncio.sleep(_LOOK_EVERY_S)
