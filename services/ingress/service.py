"""The ingress as it runs: HTTP at once, ready when the bus is, and an orderly end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from schemas.topics import DURABLE_RETENTION_MS
from services.core.fleet import Fleet
from services.core.fleet_table import FleetTable, stall_bounds
from services.core.placement import RandomUnit, stable_partition
from services.ingress.app import build_app
from services.ingress.bound_streams import BoundStreams
from services.ingress.calls import CallPorts, ModelCalls
from services.ingress.dispatch import Dispatcher
from services.ingress.edge import Edge
from services.ingress.http_protocol import EdgeProtocol
from services.ingress.inbox import Inbox
from services.ingress.metrics import IngressMetrics
from services.ingress.settings import IngressKnobs
from services.ingress.submissions import SubmissionPorts, Submissions
from services.ports import BlobStore, GroupSource, IdempotencyStore, LogReader, Publisher
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_view import FleetView
from services.runtime.health import serving

_log = structlog.get_logger("chimera.ingress")
_CLOSES_S = 5.0  # for TaskClosed and CancelTask of the last clients
_UVICORN_SPARE_S = 5  # a drained server has nothing left to wait for; this is its own backstop


@dataclass(frozen=True, slots=True)
class IngressParts:
    """What the ingress is made of. `results` and `replies` read the partition of `instance_partition`;
    `fleet_file` is followed while it runs, if there is one."""

    fleet: Fleet
    publisher: Publisher
    results: LogReader
    replies: LogReader
    fleet_log: LogReader
    submissions: GroupSource
    blobs: BlobStore
    keys: IdempotencyStore
    instance: str
    drain_s: float = 30.0
    knobs: IngressKnobs = IngressKnobs()  # noqa: RUF009 - frozen
    random_unit: RandomUnit = random.random
    steady_s: Callable[[], float] = time.monotonic
    fleet_file: Path | None = None


def instance_partition(instance: str, fleet: Fleet) -> int:
    """The partition of `results` and of `replies` that an instance reads; sharing one is harmless."""
    return stable_partition(instance, fleet.partitions)


class Ingress:
    """One replica. `run` ends by itself only where a reader failed for good."""

    def __init__(self, parts: IngressParts) -> None:
        self._parts = parts
        self._fleet = fleet = CurrentFleet(parts.fleet, parts.fleet_file)
        self._connected = False
        self._ended = asyncio.Event()
        table = FleetTable(stalled_after_s=stall_bounds(parts.fleet))
        self.view = FleetView(parts.fleet_log, table, parts.steady_s)
        self.bound = BoundStreams(self.view, parts.knobs.lost_workers_every_s)
        self.inbox = Inbox(parts.results, parts.replies, self.bound)
        self.dispatcher = Dispatcher(
            parts.publisher,
            fleet,
            parts.blobs,
            parts.random_unit,
            parts.instance,
            parts.knobs.send_again_s,
            self.view,
        )
        self.submissions = Submissions(
            SubmissionPorts(
                parts.submissions, parts.publisher, self.dispatcher, parts.blobs, fleet, parts.knobs
            )
        )
        metrics = IngressMetrics(parts.fleet.pools, self.dispatcher.load.by_pool, self._census)
        fleet.listeners.append(lambda now: metrics.know(now.pools))
        calls = ModelCalls(
            CallPorts(
                fleet, self.inbox, self.dispatcher, parts.blobs, parts.keys, parts.instance, parts.knobs
            )
        )
        self.app: Edge = build_app(calls, fleet, parts.keys, metrics, self.ready, self.shown)

    def _census(self) -> Mapping[tuple[str, str], int]:
        return self.view.table.census(self.view.now_s())

    def ready(self) -> Mapping[str, bool]:
        connected = self._connected and not self.dispatcher.bus_is_away()
        return {"publisher": connected, "readers": self.inbox.healthy}

    def shown(self) -> Mapping[str, bool]:
        """What is down without a chat being the worse for it: said in readiness, not part of it."""
        return {"submissions": self.submissions.joined, "fleet": self.view.caught_up.is_set()}

    async def run(self) -> None:
        """Connects, then reads until `close`. Raises what a reader failed with."""
        await asyncio.gather(self._parts.publisher.start(), self.inbox.start())
        self._connected = True
        _log.info("ready", instance=self._parts.instance)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.inbox.run())
            group.create_task(self.submissions.run())
            work = (self._age_blobs(), self.view.run(), self.bound.watch(), self._fleet.follow())
            endless = [group.create_task(each) for each in work]
            await self._ended.wait()
            for task in endless:
                task.cancel()

    async def _age_blobs(self) -> None:
        """No task, and no record about one, lives longer than the lanes keep it: nor does its blob."""
        while True:
            await asyncio.sleep(self._parts.knobs.blobs_every_s)
            try:
                gone = await self._parts.blobs.age_out(DURABLE_RETENTION_MS / 1000)
            except OSError as fault:
                _log.warning("blobs not looked through", error=str(fault))
            else:
                _log.info("blobs aged out", count=gone)

    def drain(self) -> None:
        """Called when intake has stopped: what is unanswered after the drain budget is told so."""
        asyncio.get_running_loop().call_later(self._parts.drain_s, self.inbox.abandon_all)

    async def close(self, running: asyncio.Task[None]) -> None:
        """After the last answer: sends what is still to be closed, then leaves the bus."""
        await self.submissions.stop()
        await self.dispatcher.background.finish(_CLOSES_S)
        self.inbox.end()
        self._ended.set()
        if not self._connected:
            running.cancel()
        await asyncio.wait({running}, timeout=_CLOSES_S)
        running.cancel()
        await self.inbox.stop()
        await self._parts.publisher.stop()


@asynccontextmanager
async def running(ingress: Ingress, *, host: str, port: int, drain_s: float) -> AsyncIterator[RunningIngress]:
    """Serves while the body runs, then drains. Raises OSError where the address is taken."""
    reading = asyncio.create_task(ingress.run())
    try:
        graceful_s = int(drain_s) + _UVICORN_SPARE_S
        options = {
            "http": EdgeProtocol,
            "timeout_graceful_shutdown": graceful_s,
            "timeout_keep_alive": 60,
            "proxy_headers": False,  # nothing here reads the client's address
            "server_header": False,
        }
        async with serving(ingress.app, host=host, port=port, **options) as actual_port:
            yield RunningIngress(actual_port, reading)
            ingress.drain()
    finally:
        await ingress.close(reading)


@dataclass(frozen=True, slots=True)
class RunningIngress:
    """`reading` ends only with a fault that the service must not outlive."""

    port: int
    reading: asyncio.Task[None]
