"""`chimera loadtest overhead`: rounds of direct, floor and path, interleaved by rate, then the checks."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from infra.process import ChildProcess
from loadtest.model_server.process import ModelServerProcess
from loadtest.overhead.after import settled
from loadtest.overhead.echo import REPLIES, REQUESTS
from loadtest.overhead.http_load import Sample
from loadtest.overhead.report import Cell, Report
from loadtest.overhead.statistics import Measured, measured
from loadtest.stage import Stage, StageOptions, cpu_seconds, load_average
from schemas.topics import TopicSpec
from services.adapters.kafka.traits import BrokerKind, traits_of

Subject = Literal["direct", "floor", "path"]
CHUNKS = 64
START_S = 30.0
PAUSE_S = 0.5
WARM_UPS, WARM_UP_RATE, WARM_UP_S = 4, 600, 10.0
FLEET = """
version: 1
prefix: bench.
pools:
  - name: chat-fast
    model: instant
    base_url: {base_url}
    slots: 256
    context_tokens: 8192
"""


@dataclass(frozen=True, slots=True)
class OverheadOptions:
    """`seconds` is the length of one round at one rate."""

    broker: BrokerKind = "kafka"
    rates: tuple[int, ...] = (50, 100, 200, 300)
    seconds: float = 5.0
    rounds: int = 3
    prompt_bytes: int = 800


@dataclass(slots=True)
class _Rounds:
    measured: dict[tuple[Subject, bool, int], list[Measured]] = field(
        default_factory=lambda: defaultdict(list)
    )
    cpu_s: dict[tuple[bool, int], dict[str, float]] = field(default_factory=dict)
    asked: dict[tuple[bool, int], int] = field(default_factory=lambda: defaultdict(int))


async def measure_overhead(options: OverheadOptions, say: Callable[[str], None]) -> Report:
    """Runs everything in a folder of its own; returns the figures. Raises AssertionError where a ledger row
    is missing or a lag stays."""
    with tempfile.TemporaryDirectory(prefix="chimera-overhead-") as folder:
        async with ModelServerProcess(chunks=CHUNKS) as server:
            stage = Stage(_stage_options(Path(folder), server, options), lambda _: None)
            async with stage:
                say(f"broker {options.broker}; load average before: {load_average()}")
                return await _Run(options, stage, server, say).all()


def _stage_options(folder: Path, server: ModelServerProcess, options: OverheadOptions) -> StageOptions:
    floor = tuple(TopicSpec(name, 1, "the floor") for name in (REQUESTS, REPLIES))
    fleet = FLEET.format(base_url=server.base_url)
    return StageOptions(folder, fleet, options.broker, more_topics=floor, benchmark=True)


class _Run:
    def __init__(
        self, options: OverheadOptions, stage: Stage, server: ModelServerProcess, say: Callable[[str], None]
    ) -> None:
        self._options, self._stage, self._server, self._say = options, stage, server, say
        self._folder = stage.options.workdir
        self._rounds = _Rounds()
        self._sent = 0

    async def all(self) -> Report:
        echo = await self._start_echo()
        try:
            await self._warm_up()
            for number in range(self._options.rounds):
                for rate in self._options.rates:
                    for stream in (False, True):
                        await self._direct_and_path(rate, stream=stream)
                    await self._floor(rate)
                self._say(f"round {number + 1} of {self._options.rounds} done; load {load_average()}")
        finally:
            await echo.stop(1.0)
        checks = await settled(self._stage, self._sent)
        return self._report(checks)

    async def _warm_up(self) -> None:
        # Apache Kafka compiles as it runs: its first 100,000 requests cost up to ten times the later ones.
        # The in-memory broker compiles nothing, and only gets slower by what it holds.
        for _ in range(WARM_UPS if traits_of(self._options.broker).durable else 0):
            start = cpu_seconds(self._stage.pids())["broker"]
            await self._drive_floor(WARM_UP_RATE, WARM_UP_S)
            used_ms = (cpu_seconds(self._stage.pids())["broker"] - start) / (WARM_UP_RATE * WARM_UP_S) * 1e3
            self._say(f"warming up: {used_ms:.2f} ms of the broker's CPU per echo")
        for stream in (False, True):
            for subject in ("direct", "path"):
                await self._http(subject, 100, 5.0, stream=stream)

    async def _direct_and_path(self, rate: int, *, stream: bool) -> None:
        options = self._options
        direct = await self._http("direct", rate, options.seconds, stream=stream)
        self._rounds.measured["direct", stream, rate].append(measured(direct, stream=stream))
        pids = {**self._stage.pids(), "model server": self._server.pid}
        before = cpu_seconds(pids)
        path = await self._http("path", rate, options.seconds, stream=stream)
        await asyncio.sleep(PAUSE_S)  # the bookkeeper's share belongs to these requests too
        used = {name: after - before[name] for name, after in cpu_seconds(pids).items()}
        self._rounds.measured["path", stream, rate].append(measured(path, stream=stream))
        self._rounds.asked[stream, rate] += len(path)
        total = self._rounds.cpu_s.setdefault((stream, rate), defaultdict(float))
        for name, seconds in used.items():
            total[name] += seconds

    async def _http(self, subject: Subject, rate: int, seconds: float, *, stream: bool) -> list[Sample]:
        base = self._server.root_url if subject == "direct" else self._stage.url
        body_file = self._folder / f"body-{stream}.json"
        body_file.write_bytes(self._body(stream=stream))
        arguments = ["--url", f"{base}/v1/chat/completions", "--body-file", str(body_file)]
        arguments += ["--rate", str(rate), "--seconds", str(seconds), "--stream" if stream else "--no-stream"]
        samples = await self._generate("loadtest.overhead", *arguments)
        self._sent += len(samples) if subject == "path" else 0
        return samples

    def _body(self, *, stream: bool) -> bytes:
        prompt = "word " * (self._options.prompt_bytes // 5)
        body = {"model": "instant", "messages": [{"role": "user", "content": prompt}], "stream": stream}
        return orjson.dumps(body)

    async def _floor(self, rate: int) -> None:
        samples = await self._drive_floor(rate, self._options.seconds)
        self._rounds.measured["floor", False, rate].append(measured(samples, stream=False))

    async def _drive_floor(self, rate: int, seconds: float) -> list[Sample]:
        size = str(self._options.prompt_bytes + 400)
        return await self._generate(
            *("loadtest.overhead.echo", "drive", "--bootstrap", self._stage.bootstrap_servers),
            *("--broker", self._options.broker, "--rate", str(rate), "--seconds", str(seconds)),
            *("--request-bytes", size),
        )

    async def _generate(self, *arguments: str) -> list[Sample]:
        out_file = self._folder / "samples.json"
        command = [sys.executable, "-m", *arguments, "--out-file", str(out_file)]
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait() != 0:
            raise RuntimeError(f"the load generator failed: {' '.join(command)}")
        return [Sample(**sample) for sample in json.loads(out_file.read_bytes())]

    async def _start_echo(self) -> ChildProcess:
        ready = self._folder / "echo-ready"
        echo = ChildProcess("echo", self._folder / "echo.log")
        command = [sys.executable, "-m", "loadtest.overhead.echo", "serve", "--ready-file", str(ready)]
        command += ["--bootstrap", self._stage.bootstrap_servers, "--broker", self._options.broker]
        echo.spawn([*command, "--reply-bytes", str(1500)])
        deadline = asyncio.get_running_loop().time() + START_S
        while not ready.exists():
            if not echo.running or asyncio.get_running_loop().time() > deadline:
                raise echo.failure("did not get ready")
            await asyncio.sleep(0.05)
        return echo

    def _report(self, checks: Sequence[str]) -> Report:
        cells = [
            Cell(subject, stream, rate, tuple(rounds))
            for (subject, stream, rate), rounds in self._rounds.measured.items()
        ]
        cpu = {
            key: {name: seconds / self._rounds.asked[key] * 1e3 for name, seconds in used.items()}
            for key, used in self._rounds.cpu_s.items()
        }
        return Report(self._options.broker, tuple(cells), cpu, tuple(checks), load_average())
