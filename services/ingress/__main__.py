"""`python -m services.ingress`: the composition root of the HTTP edge."""

from __future__ import annotations

import asyncio
import sys

from schemas.topics import TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.idempotency import SqlIdempotencyStore
from services.adapters.kafka.group_source import GroupTimings, KafkaGroupSource
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.adapters.kafka.traits import BrokerTraits, PollUse, traits_of
from services.adapters.telemetry import setup_logging, setup_tracing
from services.core.fleet import Fleet
from services.ingress.service import Ingress, IngressParts, instance_partition, running
from services.ingress.settings import IngressSettings
from services.runtime.fleet_file import load_fleet
from services.runtime.lifecycle import load_settings, run_service, stop_event


async def serve() -> None:
    """Runs until SIGTERM or SIGINT; ends with status 1 where the bus can no longer be read."""
    settings = load_settings(IngressSettings)
    fleet = load_fleet(settings.fleet_file)
    secret_names = [pool.api_key_env for pool in fleet.pools if pool.api_key_env]
    setup_logging("ingress", level=settings.log_level, secret_names=secret_names)
    flush_spans = setup_tracing("chimera-ingress", secret_names=secret_names)
    database = Database(settings.database_url, timeout_s=2.0)
    stop = stop_event()
    try:
        ingress = Ingress(_parts(settings, fleet, database))
        async with running(
            ingress, host=settings.host, port=settings.port, drain_s=settings.drain_s
        ) as service:
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, service.reading}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            failed = not stop.is_set()
        if failed:
            service.reading.result()
            sys.exit(1)
    finally:
        await database.close()
        flush_spans()


def _parts(settings: IngressSettings, fleet: Fleet, database: Database) -> IngressParts:
    traits = traits_of(settings.broker)
    names = TopicNames(fleet.prefix)
    partition = instance_partition(settings.instance, fleet)
    bootstrap = settings.kafka_bootstrap_servers
    return IngressParts(
        fleet=fleet,
        publisher=KafkaPublisher(bootstrap, traits, client_id="chimera-ingress"),
        results=_reader(bootstrap, traits, names.results, partition, "results"),
        replies=_reader(bootstrap, traits, names.replies, partition, "replies"),
        fleet_log=_reader(bootstrap, traits, names.fleet, 0, "control"),
        submissions=_submissions(bootstrap, traits, names),
        blobs=DirectoryBlobStore(settings.blob_dir, fleet.prefix),
        keys=SqlIdempotencyStore(database),
        instance=settings.instance,
        drain_s=settings.drain_s,
        knobs=settings.knobs(),
        fleet_file=settings.fleet_follow_file or settings.fleet_file,
    )


def _submissions(bootstrap: str, traits: BrokerTraits, names: TopicNames) -> KafkaGroupSource:
    return KafkaGroupSource(
        bootstrap,
        traits,
        topic=names.submissions,
        group=names.submissions_group,
        client_id="chimera-ingress-submissions",
        fetch_max_wait_ms=traits.fetch_max_wait_ms["standard"],
        timings=GroupTimings(
            session_s=traits.session_timeout_ms / 1000, heartbeat_s=traits.heartbeat_interval_ms / 1000
        ),
    )


def _reader(bootstrap: str, traits: BrokerTraits, topic: str, partition: int, use: PollUse) -> KafkaLogReader:
    return KafkaLogReader(
        bootstrap,
        traits,
        topic=topic,
        partitions=[partition],
        client_id=f"chimera-ingress-{use}",
        fetch_max_wait_ms=traits.fetch_max_wait_ms[use],
    )


if __name__ == "__main__":
    run_service(serve)
