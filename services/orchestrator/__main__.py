"""The orchestrator's composition root: migrates, joins the group, keeps the books until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.migrate import migrate
from services.adapters.database.store import SqlBookkeeperStore
from services.adapters.kafka.group_source import GroupTimings, KafkaGroupSource
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.adapters.kafka.traits import traits_of
from services.adapters.telemetry import setup_logging
from services.core.fleet import Fleet
from services.core.fleet_table import FleetTable, stall_bounds
from services.core.life.rows import LifeLimits
from services.orchestrator.bookkeeper import Bookkeeper
from services.orchestrator.settings import OrchestratorSettings
from services.ports import StoreError
from services.runtime.fleet_file import load_fleet
from services.runtime.fleet_view import FleetView
from services.runtime.health import health_app, serving
from services.runtime.lifecycle import load_settings, run_service, stop_event

log = structlog.get_logger(__name__)
_MIGRATE_AGAIN_S = 1.0


async def _main() -> None:
    settings = load_settings(OrchestratorSettings)
    setup_logging("orchestrator", level=settings.log_level)
    fleet = load_fleet(settings.fleet_file)
    stop = stop_event()
    bookkeeper: Bookkeeper | None = None

    async def alive() -> tuple[bool, Mapping[str, Any]]:
        return bookkeeper is None or bookkeeper.alive(), {}

    async def ready() -> tuple[bool, Mapping[str, Any]]:
        up = bookkeeper is not None and bookkeeper.database_up
        joined = bookkeeper is not None and bookkeeper.joined
        return up and joined, {"database": "up" if up else "down", "joined": joined}

    async with serving(
        health_app(alive=alive, ready=ready), host=settings.health_host, port=settings.health_port
    ) as port:
        log.info("serving health", port=port)
        if not await _migrated(settings.database_url, stop):
            return
        database = Database(settings.database_url, timeout_s=settings.database_timeout_s)
        publisher = _publisher(settings)
        try:
            if not await _started(publisher, stop):
                return
            view = _view(settings, fleet)
            bookkeeper = _bookkeeper(settings, fleet, publisher, database, view)
            async with _followed(view):
                await bookkeeper.run(stop)
        finally:
            await publisher.stop()
            await database.close()


def _bookkeeper(
    settings: OrchestratorSettings,
    fleet: Fleet,
    publisher: KafkaPublisher,
    database: Database,
    view: FleetView,
) -> Bookkeeper:
    names = TopicNames(fleet.prefix)
    return Bookkeeper(
        _source(settings, names),
        publisher,
        SqlBookkeeperStore(database, LifeLimits(max_tries=fleet.max_tries)),
        names,
        settings.knobs(),
        blobs=DirectoryBlobStore(settings.blob_dir, fleet.prefix),
        steady=time.monotonic,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        view=view,
    )


def _view(settings: OrchestratorSettings, fleet: Fleet) -> FleetView:
    traits = traits_of(settings.broker)
    reader = KafkaLogReader(
        settings.kafka_bootstrap_servers,
        traits,
        topic=TopicNames(fleet.prefix).fleet,
        partitions=[0],
        client_id=f"bookkeeper-{_instance(settings)}-fleet",
        fetch_max_wait_ms=traits.fetch_max_wait_ms["control"],
    )
    return FleetView(reader, FleetTable(stalled_after_s=stall_bounds(fleet)), time.monotonic)


@asynccontextmanager
async def _followed(view: FleetView) -> AsyncIterator[None]:
    """Reads `fleet` while the body runs; a fault in it ends the body too."""
    async with asyncio.TaskGroup() as group:
        following = group.create_task(view.run())
        try:
            yield
        finally:
            following.cancel()


async def _migrated(url: str, stop: asyncio.Event) -> bool:
    """Waits for the database as long as it takes; False when told to stop."""
    while not stop.is_set():
        try:
            await migrate(url)
        except StoreError as fault:
            log.warning("database not ready", fault=str(fault))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MIGRATE_AGAIN_S):
                    await stop.wait()
        else:
            return True
    return False


async def _started(publisher: KafkaPublisher, stop: asyncio.Event) -> bool:
    starting = asyncio.ensure_future(publisher.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    return False


def _instance(settings: OrchestratorSettings) -> str:
    return settings.instance_id or f"{platform.node()}-{os.getpid()}"


def _publisher(settings: OrchestratorSettings) -> KafkaPublisher:
    return KafkaPublisher(
        settings.kafka_bootstrap_servers,
        traits_of(settings.broker),
        client_id=f"bookkeeper-{_instance(settings)}",
    )


def _source(settings: OrchestratorSettings, names: TopicNames) -> KafkaGroupSource:
    traits = traits_of(settings.broker)
    return KafkaGroupSource(
        settings.kafka_bootstrap_servers,
        traits,
        topic=names.results,
        group=names.bookkeeper_group,
        client_id=f"bookkeeper-{_instance(settings)}",
        fetch_max_wait_ms=traits.fetch_max_wait_ms["batch"],
        timings=GroupTimings(
            session_s=traits.session_timeout_ms / 1000, heartbeat_s=traits.heartbeat_interval_ms / 1000
        ),
    )


if __name__ == "__main__":
    run_service(_main)
