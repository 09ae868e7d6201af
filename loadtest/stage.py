"""A whole fleet as separate processes, for benchmarks and faults: the specs that `chimera up` starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from infra.kafka.cluster import KafkaCluster
from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from infra.process import free_port
from schemas.topics import TopicSpec
from services.adapters.kafka.topic_admin import apply
from services.adapters.kafka.traits import BrokerKind, traits_of
from services.cli.processes import ServiceAddresses, StateDir, service_processes
from services.cli.supervisor import Supervised, start_all
from services.core.fleet import Fleet
from services.runtime.fleet_file import parse_fleet, to_fleet

Broker = LocalBroker | KafkaNode | KafkaCluster


@dataclass(frozen=True, slots=True)
class StageOptions:
    """`fleet_text` is a fleet file; `database_url` None takes SQLite in the work folder; `nodes` of Kafka."""

    workdir: Path
    fleet_text: str
    broker: BrokerKind = "kafka"
    database_url: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    more_topics: tuple[TopicSpec, ...] = ()
    benchmark: bool = False
    start_services: bool = True
    nodes: int = 1


class Stage:
    """`async with Stage(options) as stage`: a broker and every service, each in its own process."""

    def __init__(self, options: StageOptions, say: Callable[[str], None] = print) -> None:
        self.options, self._say = options, say
        self.state = StateDir(options.workdir)
        self.fleet: Fleet = to_fleet(parse_fleet(options.fleet_text, "fleet of this run"))
        self.broker = self._make_broker()
        self.services: dict[str, Supervised] = {}
        self.port = free_port()
        self._stack = AsyncExitStack()

    @property
    def url(self) -> str:
        """Of the HTTP edge."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database_url(self) -> str:
        return self.options.database_url or self.state.database_url()

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers

    def _make_broker(self) -> Broker:
        if self.options.broker == "local":
            return LocalBroker(self.state.logs)
        if self.options.nodes > 1:
            return KafkaCluster(self.state.kafka, count=self.options.nodes, benchmark=self.options.benchmark)
        return KafkaNode.single(self.state.kafka, benchmark=self.options.benchmark)

    async def __aenter__(self) -> Self:
        self.state.logs.mkdir(parents=True, exist_ok=True)
        self.state.fleet_file.write_text(self.options.fleet_text)
        try:
            await self._stack.enter_async_context(self.broker)
            await self.make_topics()
            if self.options.start_services:
                await self.start_services()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def make_topics(self) -> None:
        traits = traits_of(self.options.broker)
        left = await apply((*self.fleet.topics(), *self.options.more_topics), self.bootstrap_servers, traits)
        if left.mismatch:
            raise RuntimeError(f"topics are not as they must be: {left.mismatch}")

    async def start_services(self, *, only: tuple[str, ...] | None = None) -> None:
        """Starts those named (all by default), side by side, and returns when each is ready."""
        at = ServiceAddresses(
            self.bootstrap_servers, self.options.broker, self.database_url, "127.0.0.1", self.port
        )
        environment = {"CHIMERA_DRAIN_S": "5", **self.options.environment}
        specs = service_processes(self.fleet, at, self.state, environment, free_port)
        wanted = [spec for spec in specs if only is None or spec.name in only]
        started = [Supervised(spec, self.state.logs, self._say) for spec in wanted]
        for process in started:
            self._stack.push_async_callback(process.stop)
            self.services[process.spec.name] = process
        await start_all(started, self._say)

    async def start_another(self, of: str, name: str) -> int:
        """One more process like `of`, ready under a name of its own; returns the port where it answers."""
        spec, port = self.services[of].spec, free_port()
        variable = "CHIMERA_PORT" if of == "ingress" else "CHIMERA_HEALTH_PORT"
        own = {**spec.env, variable: str(port)}
        twin = replace(spec, name=name, ready_url=f"http://127.0.0.1:{port}/readyz", env=own)
        process = Supervised(twin, self.state.logs, self._say)
        self._stack.push_async_callback(process.stop)
        self.services[name] = process
        await process.start()
        return port

    def pids(self) -> dict[str, int]:
        """The processes of the fleet by name."""
        running = {name: service.pid for name, service in self.services.items()}
        brokers = self.broker.pids if isinstance(self.broker, KafkaCluster) else {"broker": self.broker.pid}
        return {**brokers, **{name: pid for name, pid in running.items() if pid is not None}}


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system seconds that each process has used so far."""
    used = {}
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        used[name] = times.user + times.system
    return used


def load_average() -> str:
    """The machine's load, to print beside figures."""
    return "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg())
