"""`chimera loadtest ...`: figures about this machine and this fleet, measured on real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
from cyclopts import App
from rich.console import Console

from loadtest.durable.run import run_durable
from loadtest.kills.run import VICTIMS, KillOptions, run_kills
from loadtest.overhead.run import OverheadOptions, measure_overhead
from services.adapters.kafka.traits import BrokerKind

loadtest_app = App(name="loadtest", help="Benchmarks and fault schedules on real processes.")
console = Console(highlight=False, soft_wrap=True, width=120)


@loadtest_app.command
def overhead(
    *,
    broker: list[BrokerKind] | None = None,
    rates: list[int] | None = None,
    seconds: float = 5.0,
    rounds: int = 3,
    report: Path = Path("reports/overhead.json"),
) -> None:
    """What the path adds to a direct call, beside the floor of the same broker.

    Parameters
    ----------
    broker
        local, kafka; both by default.
    rates
        Chats a second.
    seconds
        Length of one round at one rate.
    rounds
        How often each is repeated; the median is shown.
    report
        Where the figures go as JSON.
    """
    reports = []
    for kind in broker or ["local", "kafka"]:
        options = OverheadOptions(kind, tuple(rates or OverheadOptions().rates), seconds, rounds)
        found = asyncio.run(measure_overhead(options, console.print))
        console.print(found.table())
        for line in found.lines():
            console.print(line)
        reports.append(found.as_json())
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_bytes(orjson.dumps(reports, option=orjson.OPT_INDENT_2))


@loadtest_app.command
def kills(
    *,
    seed: int = 1,
    times: int = 10,
    rate: float = 50.0,
    gap_s: float = 6.0,
    victims: list[str] | None = None,
) -> None:
    """Kill worker, ingress, bookkeeper and broker at seeded instants under load on Apache Kafka, and check.

    Exits 1 where an accepted task has not exactly one outcome, or an attempt not exactly one ledger row.

    Parameters
    ----------
    seed
        Draws order and instants.
    times
        Kills of each victim.
    rate
        Chats a second; every other one streams.
    gap_s
        Seconds between two kills, on average.
    victims
        Some of worker, ingress, bookkeeper, broker; all by default.
    """
    options = KillOptions(seed, times, rate, gap_s, tuple(victims or VICTIMS))
    report = asyncio.run(run_kills(options, console.print))
    for line in report.lines():
        console.print(line)
    if report.verdict.breaches:
        raise SystemExit(1)


@loadtest_app.command
def durable(*, tasks: int = 60_000) -> None:
    """No-op tasks preloaded on Apache Kafka, one worker, PostgreSQL: how many a second reach the ledger."""
    for line in asyncio.run(run_durable(tasks, console.print)).lines():
        console.print(line)
