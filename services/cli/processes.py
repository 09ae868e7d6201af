"""What `chimera up` starts, as data: one spec per process, built from the fleet file and free ports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.adapters.kafka.traits import BrokerKind
from services.core.fleet import Fleet
from services.runtime.fleet_schema import FleetEntry

MODEL_READY_S = 60.0
SERVICE_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process: how it is started, and the URL that answers 200 once it does its work."""

    name: str
    command: tuple[str, ...]
    ready_url: str
    ready_s: float
    stop_grace_s: float
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateDir:
    """Where one `chimera up` keeps everything: logs, data, and the record of what runs."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def lock_file(self) -> Path:
        """Held by the one fleet that starts or runs from here."""
        return self.path / "lock"

    @property
    def fleet_file(self) -> Path:
        """The fleet as it runs: launched models have their addresses in it."""
        return self.path / "fleet.effective.yaml"

    @property
    def kafka(self) -> Path:
        return self.path / "kafka"

    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{(self.path / 'chimera.db').resolve()}"

    def variables(self) -> dict[str, str]:
        """What services are told of it."""
        return {"CHIMERA_FLEET_FILE": str(self.fleet_file), "CHIMERA_BLOB_DIR": str(self.path / "blobs")}


def launched(entry: FleetEntry, ports: Mapping[str, int]) -> FleetEntry:
    """The fleet with every `launch` replaced by the address where its model server listens."""
    pools = [
        pool.model_copy(update={"launch": None, "base_url": f"http://127.0.0.1:{ports[pool.name]}/v1"})
        if pool.launch
        else pool
        for pool in entry.pools
    ]
    return entry.model_copy(update={"pools": pools})


def model_processes(entry: FleetEntry, ports: Mapping[str, int]) -> list[ProcessSpec]:
    """One process for each pool that the file asks us to launch, and that `ports` names."""
    specs = []
    for pool in entry.pools:
        if pool.launch is None or pool.name not in ports:
            continue
        port = ports[pool.name]
        command = _module(
            "infra.llama",
            *("--model", pool.launch.model, "--port", str(port), "--alias", pool.backend_model or pool.model),
            *("--threads", str(pool.launch.threads), "--slots", str(pool.slots)),
            *("--context-per-slot", str(pool.launch.context_per_slot)),
        )
        specs.append(
            ProcessSpec(f"model-{pool.name}", command, f"http://127.0.0.1:{port}/health", MODEL_READY_S, 5.0)
        )
    return specs


@dataclass(frozen=True, slots=True)
class ServiceAddresses:
    """Where the services of one run meet: the broker, the database, the edge."""

    bootstrap_servers: str
    broker: BrokerKind
    database_url: str
    host: str
    port: int

    def variables(self) -> dict[str, str]:
        return {
            "CHIMERA_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "CHIMERA_BROKER": self.broker,
            "CHIMERA_DATABASE_URL": self.database_url,
        }


def worker_process(
    pool: str, shared: Mapping[str, str], new_port: Callable[[], int], **more: str
) -> ProcessSpec:
    """A worker of a pool. `shared`: what every service of the fleet is told."""
    env = {"CHIMERA_POOL": pool, **more}
    return _service(f"worker-{pool}", "services.worker_pools", shared, new_port, **env)


def _service(
    name: str, module: str, shared: Mapping[str, str], new_port: Callable[[], int], **more: str
) -> ProcessSpec:
    port, drain_s = new_port(), _drain_s(shared)
    env = {**shared, "CHIMERA_HEALTH_PORT": str(port), **more}
    ready = f"http://127.0.0.1:{port}/readyz"
    return ProcessSpec(name, _module(module), ready, SERVICE_READY_S, drain_s + 10.0, env)


def _drain_s(shared: Mapping[str, str]) -> float:
    return float(shared.get("CHIMERA_DRAIN_S", "30"))


def service_processes(
    fleet: Fleet,
    at: ServiceAddresses,
    state: StateDir,
    environment: Mapping[str, str],
    new_port: Callable[[], int],
) -> list[ProcessSpec]:
    """The orchestrator, one worker per pool, the ingress: in the order in which they start.

    `new_port` gives each but the ingress a port for its health.
    """
    shared = {**environment, **at.variables(), **state.variables()}
    drain_s = _drain_s(shared)
    orchestrator = _service("orchestrator", "services.orchestrator", shared, new_port)
    workers = [worker_process(pool.name, shared, new_port) for pool in fleet.pools]
    ingress_env = {**shared, "CHIMERA_HOST": at.host, "CHIMERA_PORT": str(at.port)}
    ingress = ProcessSpec(
        "ingress",
        _module("services.ingress"),
        f"http://{reachable(at.host)}:{at.port}/readyz",
        SERVICE_READY_S,
        drain_s + 10.0,
        ingress_env,
    )
    return [orchestrator, *workers, ingress]


def reachable(host: str) -> str:
    """The address to ask where a service listens on `host`: the wildcard is no address to ask."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - compared, never bound


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)
