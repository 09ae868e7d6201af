"""`python -m services.worker_pools`: the composition root of a worker, one process for one pool."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import uuid_utils
from prometheus_client import REGISTRY

from schemas.topics import PRIORITIES, Priority, TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.journal import DirectoryJournal
from services.adapters.kafka.group_source import KafkaGroupSource
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.adapters.kafka.traits import BrokerTraits, traits_of
from services.adapters.model_backends.choice import PoolClient, client_of
from services.adapters.model_backends.watched import connections_of, look_of
from services.adapters.telemetry import setup_logging, setup_tracing
from services.adapters.wall_clock import WallClock
from services.core.fleet import Fleet, Pool
from services.runtime.fleet_file import FleetFileError, load_fleet, missing_of
from services.runtime.health import health_app, serving
from services.runtime.lifecycle import load_settings, run_service, stop_event
from services.worker_pools.backend_gauges import BackendGauges
from services.worker_pools.parts import WorkerParts
from services.worker_pools.pool_worker import PoolWorker
from services.worker_pools.send_faults import SendFaults
from services.worker_pools.settings import WorkerSettings
from services.worker_pools.worker_metrics import WorkerMetrics

_PROBE_EVERY_S = 1.0


async def serve() -> None:
    """Runs until SIGTERM or SIGINT and then drains; ends with the fault of a loop that broke."""
    settings = load_settings(WorkerSettings)
    fleet = load_fleet(settings.fleet_file)
    pool = _pool(settings, fleet)
    secret_names = pool.secret_names()
    setup_logging("worker", level=settings.log_level, secret_names=secret_names)
    flush_spans = setup_tracing("chimera-worker", secret_names=secret_names)
    try:
        await _serve(settings, fleet, pool)
    finally:
        flush_spans()


async def _serve(settings: WorkerSettings, fleet: Fleet, pool: Pool) -> None:
    stop = stop_event()
    random_source = random.Random()
    worker_id = settings.worker_id or _worker_id(pool, random_source)
    backend = client_of(pool, os.environ, random_source.random)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(backend.aclose)
        parts = await _parts(settings, fleet, pool, backend, random_source, stack, stop)
        if parts is None:
            return  # stopped before the broker answered
        metrics = WorkerMetrics(pool.name)
        worker = PoolWorker(pool, fleet, worker_id, parts, settings.knobs(), metrics)
        metrics.watch(worker.in_flight, worker.held)
        producers = {"durable": parts.durable, "chunks": parts.chunks}
        REGISTRY.register(SendFaults(pool.name, producers, worker.chunks_dropped, worker.beats_unsent))
        REGISTRY.register(BackendGauges(pool.name, worker.backends(), parts.connections))
        probe = _Probe(backend, pool, worker)
        app = health_app(alive=_Alive(worker, worker_id), ready=probe)
        await stack.enter_async_context(serving(app, host=settings.health_host, port=settings.health_port))
        await _run(worker, probe, stop)


async def _run(worker: PoolWorker, probe: _Probe, stop: asyncio.Event) -> None:
    running = asyncio.create_task(worker.run())
    probing = asyncio.create_task(probe.until_answered())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    try:
        await running
    finally:
        for task in (probing, stopping):
            task.cancel()
        await asyncio.gather(probing, stopping, return_exceptions=True)


class _Alive:
    def __init__(self, worker: PoolWorker, worker_id: str) -> None:
        self._worker = worker
        self._worker_id = worker_id

    async def __call__(self) -> tuple[bool, Mapping[str, Any]]:
        worker = self._worker
        shown = {"worker": self._worker_id, "in_flight": worker.in_flight(), "held": worker.held()}
        return worker.alive(), {**shown, "gate": worker.gate()}


class _Probe:
    """Readiness: what the worker waits for, and whether one of its backends ever said anything."""

    def __init__(self, backend: PoolClient, pool: Pool, worker: PoolWorker) -> None:
        self._backend = backend
        self._base_urls = pool.base_urls or ("",)
        self._worker = worker
        self._answered = False

    async def until_answered(self) -> None:
        while not (self._answered or self._worker.backend_answered()):
            answers = [await self._backend.answers(base_url) for base_url in self._base_urls]
            self._answered = any(answers)
            if not self._answered:
                await asyncio.sleep(_PROBE_EVERY_S)

    async def __call__(self) -> tuple[bool, Mapping[str, Any]]:
        answered = self._answered or self._worker.backend_answered()
        checks = {**self._worker.ready(), "backend_answered": answered}
        return all(checks.values()), {**checks, "gate": self._worker.gate()}


def _pool(settings: WorkerSettings, fleet: Fleet) -> Pool:
    pool = fleet.pool(settings.pool)
    if pool is None:
        names = ", ".join(sorted(known.name for known in fleet.pools))
        raise FleetFileError(
            f"CHIMERA_POOL: {settings.pool!r} is not in {settings.fleet_file}, expected one of {names}"
        )
    if absent := missing_of(pool, os.environ):
        raise FleetFileError(absent[0])
    return pool


def _worker_id(pool: Pool, random_source: random.Random) -> str:
    return f"{pool.name}-{socket.gethostname()}-{os.getpid()}-{random_source.getrandbits(24):06x}"


async def _parts(
    settings: WorkerSettings,
    fleet: Fleet,
    pool: Pool,
    backend: PoolClient,
    random_source: random.Random,
    stack: AsyncExitStack,
    stop: asyncio.Event,
) -> WorkerParts | None:
    traits = traits_of(settings.broker)
    names = TopicNames(fleet.prefix)
    bootstrap = settings.kafka_bootstrap_servers
    client_id = f"chimera-worker-{pool.name}"
    durable = KafkaPublisher(bootstrap, traits, client_id=client_id)
    chunks = KafkaPublisher(bootstrap, traits, client_id=f"{client_id}-chunks", durable=False)
    journal, look = DirectoryJournal(settings.journal_of(fleet.prefix)), look_of(pool)
    stack.callback(journal.close)
    for ends in (durable.stop, chunks.stop, *([] if look is None else [look.aclose])):
        stack.push_async_callback(ends)
    if not await _started(durable, chunks, stop):
        return None

    lane = partial(_lane, bootstrap, traits, names)
    return WorkerParts(
        lanes={priority: lane(pool.name, priority) for priority in PRIORITIES},
        lane_source=lane,
        control=_reader(bootstrap, traits, names.control, f"{client_id}-control"),
        fleet=_reader(bootstrap, traits, names.fleet, f"{client_id}-fleet"),
        durable=durable,
        chunks=chunks,
        model=backend,
        fleet_file=settings.fleet_follow_file or settings.fleet_file,
        look=look,
        connections=connections_of(backend),
        blobs=DirectoryBlobStore(settings.blob_dir, fleet.prefix),
        journal=journal,
        clock=WallClock(),
        uniform=random_source.random,
        new_attempt=lambda: str(uuid_utils.uuid7()),
    )


def _reader(bootstrap: str, traits: BrokerTraits, topic: str, client_id: str) -> KafkaLogReader:
    """Of a topic with one partition that every worker reads whole."""
    wait_ms = traits.fetch_max_wait_ms["control"]
    return KafkaLogReader(
        bootstrap, traits, topic=topic, partitions=[0], client_id=client_id, fetch_max_wait_ms=wait_ms
    )


def _lane(
    bootstrap: str, traits: BrokerTraits, names: TopicNames, pool: str, priority: Priority
) -> KafkaGroupSource:
    return KafkaGroupSource(
        bootstrap,
        traits,
        topic=names.lane(pool, priority),
        group=names.lane_group(pool, priority),
        client_id=f"chimera-worker-{pool}-{priority}",
        fetch_max_wait_ms=traits.fetch_max_wait_ms[priority],
    )


async def _started(durable: KafkaPublisher, chunks: KafkaPublisher, stop: asyncio.Event) -> bool:
    """Waits for the broker as long as nobody stops us."""

    async def start() -> None:
        await durable.start()
        await chunks.start()

    async def stopped() -> None:
        await stop.wait()

    starting, stopping = asyncio.create_task(start()), asyncio.create_task(stopped())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False
    await starting
    return True


if __name__ == "__main__":
    run_service(serve)
    sys.exit(0)
