"""`chimera loadtest ...`: figures about this machine and this fleet, measured on real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
from cyclopts import App
from rich.console import Console

from loadtest.chaos.report import totals
from loadtest.chaos.run import ChaosOptions, run_chaos
from loadtest.durable.run import run_durable
from loadtest.kills.run import VICTIMS, KillOptions, run_kills
from loadtest.long_task.run import LongOptions, run_long
from loadtest.overhead.run import OverheadOptions, measure_overhead
from loadtest.peers.run import PeerOptions, run_peers
from loadtest.peers.throughput import run_beside
from loadtest.sharing.report import Part
from loadtest.sharing.run import SharingOptions, run_sharing
from services.adapters.kafka.traits import BrokerKind

loadtest_app = App(name="loadtest", help="Benchmarks and fault schedules on real processes.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=120)


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
def chaos(
    *,
    seed: int = 1,
    count: int = 1,
    seconds: float = 20.0,
    rate: float = 45.0,
    time_scale: float = 1.0,
    report: Path = Path("reports/chaos.json"),
) -> None:
    """Break every part of a fleet under load on three Kafka nodes, and check what four readers say of it.

    Exits 1 on a breach: an accepted task without exactly one outcome that is the same for the client, the
    ingress, the rows and the log; an attempt without its ledger row; a fleet that is not live again in time.
    What breaches are read from is kept beside the report.

    Parameters
    ----------
    seed
        The first seed; each draws its faults and its load.
    count
        How many seeds, one after the other on the same fleet.
    seconds
        How long faults are done in each seed.
    rate
        Calls a second.
    time_scale
        Multiplies the services' own timers.
    report
        Where the figures go as JSON.
    """
    seeds = tuple(range(seed, seed + count))
    evidence = report.parent / report.stem
    options = ChaosOptions(seeds, seconds, rate=rate, time_scale=time_scale, evidence=evidence)
    reports = asyncio.run(run_chaos(options, console.print))
    for line in totals(reports):
        console.print(line)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_bytes(orjson.dumps([one.as_json() for one in reports], option=orjson.OPT_INDENT_2))
    if any(one.breaches for one in reports):
        raise SystemExit(1)


@loadtest_app.command
def long(*, minutes: float = 31.0, rate: float = 0.2, time_scale: float = 1.0) -> None:
    """One task that streams for that long beside two rebalances of its pool, on Apache Kafka.

    Exits 1 where it was tried twice, has not one ledger row and one outcome, or its client has not all of it.

    Parameters
    ----------
    minutes
        How long the model server streams.
    rate
        Batch calls a second beside it.
    time_scale
        Multiplies the services' own timers, the pool's time-outs and the pace of the stream.
    """
    report = asyncio.run(run_long(LongOptions(minutes * 60, rate, time_scale), console.print))
    for line in report.lines():
        console.print(line)
    if report.breaches():
        raise SystemExit(1)


@loadtest_app.command
def durable(*, tasks: int = 60_000) -> None:
    """No-op tasks preloaded on Apache Kafka, one worker, PostgreSQL: how many a second reach the ledger."""
    for line in asyncio.run(run_durable(tasks, console.print)).lines():
        console.print(line)


@loadtest_app.command
def peers(
    *,
    seed: int = 1,
    times: int = 4,
    rate: float = 20.0,
    gap_s: float = 10.0,
    visibility_s: int = 10,
    environment: Path = Path(".venv-peers"),
) -> None:
    """The same load and kills on Chimera, Celery + Redis and taskiq-aio-kafka: lost, doubled, recovery.

    Parameters
    ----------
    seed
        Draws order and instants of the kills.
    times
        Kills of each of worker and broker.
    rate
        Tasks a second.
    gap_s
        Seconds between two kills, on average.
    visibility_s
        Celery's visibility time-out on Redis; its default is 3600.
    environment
        Where the peers' own Python environment is made, from their lock file.
    """
    asyncio.run(run_peers(PeerOptions(seed, times, rate, gap_s, visibility_s, environment), console.print))


@loadtest_app.command
def beside(*, tasks: int = 20_000, rounds: int = 3, environment: Path = Path(".venv-peers")) -> None:
    """Durable no-op tasks a second, Chimera's and Dramatiq's on Redis, in turns."""
    for line in asyncio.run(run_beside(tasks, rounds, environment, console.print)).lines():
        console.print(line)


@loadtest_app.command
def sharing(*, part: list[Part] | None = None, seed: int = 1, seconds: float = 18.0, rounds: int = 2) -> None:
    """Queue waits of interactive work beside batch work, and of tenants beside one that floods.

    A worker on Apache Kafka before a model server with four slots; rounds of both arms in turn, with the same
    arrivals. Exits 1 where a promised ratio or share is missed.

    Parameters
    ----------
    part
        batch, tenants; both by default.
    seed
        Draws arrivals and service times.
    seconds
        Length of one round of one arm, the first two seconds of which are not counted.
    rounds
        How often each arm is repeated.
    """
    options = SharingOptions(tuple(part or ("batch", "tenants")), seed, seconds, rounds)
    reports = asyncio.run(run_sharing(options, console.print))
    for report in reports:
        for line in report.lines():
            console.print(line)
    if not all(report.kept for report in reports):
        raise SystemExit(1)
