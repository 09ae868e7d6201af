"""`chimera loadtest chaos`: one fleet, one schedule of faults after the other, each followed by a check."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from loadtest.chaos.check import check, parked_tasks
from loadtest.chaos.check_attempts import worker_pid
from loadtest.chaos.edge_log import EdgeLogs
from loadtest.chaos.evidence import UNHEARD_S, Evidence
from loadtest.chaos.faults import Striker
from loadtest.chaos.fleet import MODELS, ChaosFleet
from loadtest.chaos.law import Decided
from loadtest.chaos.liveness import until_live
from loadtest.chaos.load import Load, Targets
from loadtest.chaos.log import LogReader, Positions
from loadtest.chaos.recovery import recoveries
from loadtest.chaos.report import SeedReport, keep_evidence
from loadtest.chaos.rows import read_rows
from loadtest.chaos.schedule import draw

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """`rate` calls a second, faults for `seconds` of each seed, `others` beside the three of every seed;
    `evidence` gets what breaches are read from.

    settle_s: how long after the last heal the last task may take before it counts as never ended. unheard_s:
    how young a try may die without a ledger row.
    """

    seeds: Sequence[int] = (1,)
    seconds: float = 20.0
    others: tuple[int, int] = (4, 7)
    rate: float = 45.0
    time_scale: float = 1.0
    settle_s: float = 100.0
    unheard_s: float = UNHEARD_S
    evidence: Path = Path("reports/chaos")


async def run_chaos(options: ChaosOptions, say: Callable[[str], None]) -> list[SeedReport]:
    """The whole run on three Kafka nodes and PostgreSQL, in a folder of its own."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers that are away are what this is about
    reports: list[SeedReport] = []
    with tempfile.TemporaryDirectory(prefix="chimera-chaos-") as folder:
        async with ChaosFleet(Path(folder), options.time_scale, say) as fleet:
            engine = create_async_engine(fleet.database.url)
            try:
                for seed in options.seeds:
                    report = await _Seed(seed, options, fleet, engine, say).play()
                    reports.append(report)
                    for line in report.lines():
                        say(line)
            finally:
                await engine.dispose()
                if any(report.breaches for report in reports):
                    logs = options.evidence / "logs"
                    shutil.copytree(fleet.stage.state.logs, logs, dirs_exist_ok=True)
    return reports


class _Seed:
    def __init__(
        self,
        seed: int,
        options: ChaosOptions,
        fleet: ChaosFleet,
        engine: AsyncEngine,
        say: Callable[[str], None],
    ) -> None:
        self._seed, self._options, self._fleet, self._engine = seed, options, fleet, engine
        self._say = say
        self._run_id = f"s{seed}x{uuid.uuid4().hex[:6]}"
        targets = Targets(fleet.edges, MODELS, fleet.stage.bootstrap_servers, fleet.names.submissions)
        self._load = Load(targets, self._run_id, options.rate, random.Random(seed))
        self._striker = Striker(fleet, say)

    async def play(self) -> SeedReport:
        """Faults under load, the way back to life, the settling, the check."""
        began = time.monotonic()
        faults = draw(self._seed, self._fleet.shape(self._options.seconds, self._options.others))
        self._say(f"seed {self._seed} ({self._run_id}): " + "; ".join(map(str, faults)))
        async with self._reader(None) as reader:
            since = dict(reader.positions)
        edge = EdgeLogs(self._fleet.edge_logs())
        load = asyncio.create_task(self._load.run())
        try:
            await self._striker.play(faults)
            live_s = await until_live(
                self._load, list(self._fleet.edges), list(MODELS), self._striker.last_heal_s
            )
        finally:
            self._load.stop()
            await load
        evidence = await self._settled(since)
        evidence.edge = edge.lines(self._run_id)
        verdict = check(evidence)
        parked_s, last_s = self._ended_s(evidence)
        report = SeedReport(
            self._seed,
            faults,
            verdict,
            live_s,
            parked_s,
            last_s,
            tuple(recoveries(evidence)),
            time.monotonic() - began,
            tuple(self._striker.unhealed),
        )
        kept = keep_evidence(self._options.evidence, report, evidence)
        if kept is not None:
            self._say(f"  evidence: {kept}")
        return report

    def _reader(self, since: Positions | None) -> LogReader:
        stage = self._fleet.stage
        pools = [pool.name for pool in stage.fleet.pools]
        return LogReader(stage.bootstrap_servers, self._fleet.names, pools, stage.fleet.partitions, since)

    async def _settled(self, since: Positions) -> Evidence:
        """Everything there is to know, once every task is over in log and rows, or after the longest wait."""
        evidence = Evidence(
            told=self._load.told,
            submitted=self._load.submitted,
            deaths=tuple(self._striker.deaths),
            log_away=tuple(self._striker.log_away),
            unheard_s=self._options.unheard_s,
        )
        deadline = self._striker.last_heal_s + self._options.settle_s
        async with self._reader(since) as reader:
            while True:
                await reader.read_on(evidence, self._run_id)
                decided = Decided(evidence)
                late = time.time() > deadline
                if late or decided.tasks <= decided.outcomes.keys():
                    await read_rows(self._engine, evidence, decided.tasks)
                    if late or await self._is_over(evidence):
                        break
                await asyncio.sleep(_POLL_S)
        for backend in self._fleet.backends.values():
            evidence.attempts += backend.log_of(self._run_id)
        return evidence

    async def _is_over(self, evidence: Evidence) -> bool:
        dead = {death.pid for death in self._striker.deaths}
        open_rows = [
            row for row in evidence.ledger if row["state"] == "open" and worker_pid(row["worker"]) not in dead
        ]
        holding = [row for row in evidence.parked if row["state"] in ("parked", "sweeping")]
        if open_rows or holding or len(evidence.tasks) < len(evidence.accepted):
            return False
        return not any([await backend.in_flight() for backend in self._fleet.backends.values()])

    def _ended_s(self, evidence: Evidence) -> tuple[float, float]:
        """After the last heal: when the last parked task was over, and the last of all that it had found."""
        healed_s, outcomes = self._striker.last_heal_s, Decided(evidence).outcomes
        after = {told.request_id for told in evidence.told if told.sent_s > healed_s}
        before = {task for task, names in evidence.accepted.items() if not names <= after}
        parked = [outcomes[task].at_s for task in parked_tasks(evidence) if task in outcomes]
        last = [outcomes[task].at_s for task in before if task in outcomes]
        return max(0.0, max(parked, default=0) - healed_s), max(0.0, max(last, default=0) - healed_s)
