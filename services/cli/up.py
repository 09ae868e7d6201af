"""`chimera up`: everything on one machine. Starts, watches, and stops what it started."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from infra.process import free_port
from services.adapters.kafka.topic_admin import apply
from services.adapters.kafka.traits import BrokerKind, traits_of
from services.cli.brokers import Broker, make_broker, outgrown
from services.cli.faults import UpError
from services.cli.first_question import ask, curl_text, warm_up
from services.cli.live_changes import LiveChanges, PoolProcesses, publish
from services.cli.processes import (
    ServiceAddresses,
    StateDir,
    launched,
    model_processes,
    reachable,
    service_processes,
)
from services.cli.run_record import ProcessMark, RunRecord, sole_user
from services.cli.supervisor import Supervised, side_by_side, start_all, stop_all
from services.runtime.fleet_file import missing_keys, read_fleet_entry, to_fleet

WATCH_S = 0.25


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line says."""

    fleet_file: Path
    broker: BrokerKind
    state: StateDir
    host: str
    port: int
    bootstrap_servers: str | None = None
    database_url: str | None = None


class Up:
    """One run: broker, model servers, orchestrator, workers, ingress."""

    def __init__(
        self, options: UpOptions, say: Callable[[str], None], environment: Mapping[str, str]
    ) -> None:
        self._options, self._say, self._environment = options, say, environment
        self._entry = read_fleet_entry(options.fleet_file)
        self._model_ports = {pool.name: free_port() for pool in self._entry.pools if pool.launch}
        self._effective = launched(self._entry, self._model_ports)
        self._fleet = to_fleet(self._effective)
        self._broker: Broker = make_broker(options.broker, options.state, options.bootstrap_servers)
        self._pools = PoolProcesses(ports=self._model_ports)
        self._others: list[Supervised] = []  # the orchestrator, and last the ingress
        self._changes = LiveChanges(
            options.fleet_file, self._entry, options.state, self._pools, self._shared, say
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises UpError, or ProcessFailedError with the end of the failing log."""
        missing = missing_keys(self._fleet, self._environment)
        if missing:
            raise UpError("\n".join(missing))
        with sole_user(self._options.state.lock_file) as alone:
            if not alone:
                record = RunRecord.read(self._options.state.run_file)
                where = f"at {record.url}" if record is not None else "and is starting"
                raise UpError(f"a fleet already runs from here {where}; stop it: make down, or chimera down")
            check_free(self._options.host, self._options.port)
            await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> None:
        self._write_fleet()
        try:
            self._record(ready=False)  # from now on `down` finds it
            if await finished_first(self._first_answer(), stop):
                await self._watch(stop)
        finally:
            await self._stop()

    async def _first_answer(self) -> None:
        await self._start()
        self._record(ready=False)
        try:
            answer = await ask(self._url())
        except (httpx.HTTPError, KeyError, ValueError) as fault:
            raise UpError(f"the fleet is up but did not answer its first question: {fault!r}") from None
        self._record(ready=True)
        self._say(f"\nThe fleet answers at {self._url()}")
        self._say(f"  asked:    {answer.question}\n  answered: {answer.text}")
        self._say(f"\nTry it:\n{curl_text(self._url())}\n")

    def _url(self) -> str:
        return f"http://{reachable(self._options.host)}:{self._options.port}"

    def _write_fleet(self) -> None:
        state = self._options.state
        state.logs.mkdir(parents=True, exist_ok=True)
        publish(state.fleet_file, self._effective)

    async def _start(self) -> None:
        logs = self._options.state.logs
        specs = model_processes(self._entry, self._model_ports)
        self._pools.models = {
            spec.name.removeprefix("model-"): Supervised(spec, logs, self._say) for spec in specs
        }
        await side_by_side(self._start_broker(), self._start_models())
        await self._start_services()

    async def _start_models(self) -> None:
        await start_all(list(self._pools.models.values()), self._say)
        await asyncio.gather(*(warm_up(f"http://127.0.0.1:{port}") for port in self._model_ports.values()))

    async def _start_broker(self) -> None:
        await self._broker.start()
        traits = traits_of(self._options.broker)
        left = await apply(self._fleet.topics(), self._broker.bootstrap_servers, traits)
        if left.mismatch:
            raise UpError("\n".join(str(fault) for fault in left.mismatch))
        self._say(f"broker ({self._options.broker}) ready at {self._broker.bootstrap_servers}")

    async def _start_services(self) -> None:
        state = self._options.state
        specs = service_processes(self._fleet, self._addresses(), state, self._environment, free_port)
        made = {spec.name: Supervised(spec, state.logs, self._say) for spec in specs}
        workers = {f"worker-{pool.name}": pool.name for pool in self._fleet.pools}
        self._pools.workers = {pool: made[name] for name, pool in workers.items()}
        self._others = [process for name, process in made.items() if name not in workers]
        await start_all(list(made.values()), self._say)

    def _services(self) -> list[Supervised]:
        """In the order in which they start."""
        return [*self._others[:1], *self._pools.workers.values(), *self._others[1:]]

    def _shared(self) -> dict[str, str]:
        """What every service is told."""
        return {**self._environment, **self._addresses().variables(), **self._options.state.variables()}

    def _addresses(self) -> ServiceAddresses:
        options = self._options
        return ServiceAddresses(
            self._broker.bootstrap_servers,
            options.broker,
            options.database_url or options.state.database_url(),
            options.host,
            options.port,
        )

    def _record(self, *, ready: bool) -> None:
        marks = [
            ProcessMark.of(process.spec.name, process.pid)
            for process in (*self._pools.models.values(), *self._services())
            if process.pid is not None
        ]
        if self._broker.running and self._broker.pid:
            marks.append(ProcessMark.of("broker", self._broker.pid))
        up = ProcessMark.of("up", os.getpid())
        variables = {**self._addresses().variables(), **self._options.state.variables()}
        record = RunRecord(up, tuple(marks), ready, self._url(), curl_text(self._url()), variables)
        record.write(self._options.state.run_file)

    async def _watch(self, stop: asyncio.Event) -> None:
        """Restarts what falls with the broker; single processes restart themselves (supervisor)."""
        while not stop.is_set():
            for process in (*self._pools.models.values(), *self._services()):
                if process.fatal.done():
                    raise UpError(process.fatal.result())
            if not self._broker.running:
                await self._restart_with_broker("the broker ended")
            elif outgrown(self._broker):
                await self._restart_with_broker(
                    "the in-memory broker holds more than 1 GiB, which it never frees"
                )
            else:
                await finished_first(self._look(), stop)  # a change takes minutes: a stop ends it
            try:
                await asyncio.wait_for(stop.wait(), WATCH_S)
            except TimeoutError:
                continue

    async def _look(self) -> None:
        if not await self._changes.look():
            return
        # What a start of the services would start from now on.
        self._entry = self._changes.entry
        self._effective = launched(self._entry, self._pools.ports)
        self._fleet = to_fleet(self._effective)
        self._record(ready=True)

    async def _restart_with_broker(self, why: str) -> None:
        # In memory nothing survives: services that kept their positions would skip new records in silence.
        self._say(f"{why}; starting it and the services again")
        if self._options.broker == "local":
            await stop_all(self._services())
            await self._broker.stop()
            await self._start_broker()
            await self._start_services()
        else:
            await self._start_broker()
        self._record(ready=True)

    async def _stop(self) -> None:
        self._say("stopping")
        # The edge first; then the workers side by side, for each may drain; last who keeps their books.
        for processes in (self._others[1:], list(self._pools.workers.values()), self._others[:1]):
            await stop_all(processes)
        await stop_all(list(self._pools.models.values()))
        await self._broker.stop()
        self._options.state.run_file.unlink(missing_ok=True)


async def finished_first(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether `work` ended before `stop` was set, which cancels it; raises what it raises."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False


def check_free(host: str, port: int) -> None:
    """Raises UpError naming the port where somebody listens on it already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as fault:
            raise UpError(
                f"port {port} on {host} is taken ({fault.strerror}); choose another with --port"
            ) from None
