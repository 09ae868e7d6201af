"""What the doctor looks at: heartbeats, topics, the log of the last minutes, database, edge, probes."""

from __future__ import annotations

import asyncio
import time

import httpx

from schemas.codec import SchemaError, decode, decode_as
from schemas.headers import to_text
from schemas.messages import Message, RunTask
from schemas.topics import PRIORITIES
from services.adapters.database.engine import Database
from services.adapters.kafka import topic_admin
from services.cli.bus_reading import publisher_of, read_fleet, read_topic, undone
from services.cli.doctor_probes import ask_all
from services.cli.running_fleet import RunningFleet
from services.core.dead_letters import DeadLetter, by_cause
from services.core.diagnosis import Evidence
from services.core.diagnosis_fold import happened, pool_evidence
from services.ports import BusError, OutRecord, StartAt, StoreError

_TIMEOUT_S = 5.0
_PINGS = 5


async def gather(running: RunningFleet, window_s: float, probes: int) -> Evidence:
    """Everything that answers; what does not is evidence too."""
    edge_up, database_up = await asyncio.gather(_edge_up(running), _database_up(running))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            bus_ms = await _bus_ms(running)
    except (BusError, TimeoutError):
        return Evidence(window_s, [], bus_ms=None, database_up=database_up, edge_up=edge_up)
    asked = await ask_all(running, probes) if probes and edge_up else []
    table, heard_s = await read_fleet(running), time.time()
    start = StartAt("time", int((time.time() - window_s) * 1000))
    seen = happened(await _results(running, start), await _tasks(running, start))
    plan = await topic_admin.plan(running.fleet.topics(), running.bootstrap_servers, running.traits)
    wrong = [str(fault) for fault in plan.mismatch] + [f"{spec.name} is missing" for spec in plan.create]
    return Evidence(
        window_s=window_s,
        pools=pool_evidence(running.fleet, table, heard_s, seen),
        bus_ms=bus_ms,
        database_up=database_up,
        edge_up=edge_up,
        books_behind=await undone(running, running.names.bookkeeper_group, running.names.results),
        topics_wrong=tuple(wrong),
        sessions=seen.sessions,
        moved_sessions=seen.moved_sessions,
        shared_sessions=seen.shared_sessions,
        lost_streams=seen.lost_streams,
        dead_letters=await _dead(running, start),
        probes=asked,
    )


async def _bus_ms(running: RunningFleet) -> float:
    """The fastest of a few acknowledged records; one without a value on `fleet` says nothing to anybody."""
    key, fastest = b"doctor/ping", float("inf")
    async with publisher_of(running) as publisher:
        for _ in range(_PINGS):
            began = time.monotonic()
            await publisher.send(OutRecord(running.names.fleet, key, None, [], 0), timeout_s=_TIMEOUT_S)
            fastest = min(fastest, time.monotonic() - began)
    return fastest * 1000


async def _results(running: RunningFleet, start: StartAt) -> list[Message]:
    found = []
    async for record in read_topic(running, running.names.results, running.fleet.partitions, start):
        try:
            message = decode(to_text(record.headers), record.value)
        except SchemaError:
            continue
        if isinstance(message, Message) and record.timestamp_ms >= (start.time_ms or 0):
            found.append(message)
    return found


async def _tasks(running: RunningFleet, start: StartAt) -> list[RunTask]:
    found = []
    for pool in running.fleet.pools:
        for priority in PRIORITIES:
            lane = running.names.lane(pool.name, priority)
            async for record in read_topic(running, lane, running.fleet.partitions, start):
                try:
                    found.append(decode_as(RunTask, record.value))
                except SchemaError:
                    continue
    return found


async def _dead(running: RunningFleet, start: StartAt) -> dict[str, int]:
    letters = [
        DeadLetter(r.partition, r.offset, r.timestamp_ms, r.key, r.value, to_text(r.headers))
        async for r in read_topic(running, running.names.dead, start=start)
        if r.timestamp_ms >= (start.time_ms or 0)
    ]
    return {cause.cause: cause.count for cause in by_cause(letters)}


async def _database_up(running: RunningFleet) -> bool:
    database = Database(running.database_url, timeout_s=_TIMEOUT_S)
    try:
        await database.ping()
    except StoreError:
        return False
    finally:
        await database.close()
    return True


async def _edge_up(running: RunningFleet) -> bool:
    """Where nobody says where the edge is, it is not asked."""
    if running.url is None:
        return True
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
            return (await client.get(f"{running.url}/readyz")).is_success
    except httpx.HTTPError:
        return False
