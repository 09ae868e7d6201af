"""Workers of two pools on one device, on the in-memory broker: who may run how much, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.fleet_messages import SlotClaim
from schemas.messages import TaskSucceeded
from services.adapters.model_backends.openai import OpenAIBackend
from services.core.fleet import Device
from tests.integration.worker_rig import NAMES, POOL, Running, WorkerRig, scripted, until

SLOTS = 4
HEAVY = replace(POOL, name="heavy", slots=8, device="gpu")
LIGHT = replace(POOL, name="light", slots=8, device="gpu")
WORK = {"delay_s": 0.3, "text": "done"}


@asynccontextmanager
async def shared_device(server: ModelServerProcess, blobs: Path, **knobs: Any) -> AsyncIterator[WorkerRig]:
    """One model server stands for the device: what it works on at once is what the device is asked for."""
    client = OpenAIBackend(slots=16)
    heavy, light = (replace(pool, base_urls=(server.root_url,)) for pool in (HEAVY, LIGHT))
    rig = WorkerRig(client, blobs, heavy, (light,), **knobs)
    rig.fleet = replace(rig.fleet, devices=(Device("gpu", SLOTS),))
    try:
        yield rig
    finally:
        await rig.close()
        await client.aclose()


def device_of(running: Running) -> Mapping[str, tuple[int, int]]:
    """Granted and wanted by pool, as this worker has read it."""
    claims = running.worker._crew.presence.claims
    assert claims is not None
    return {pool.pool: (pool.granted, pool.wanted) for pool in claims.slots.pools()}


def slots_of(running: Running) -> int:
    return running.worker._crew.budget.limit


def most_at_once(server: ModelServerProcess) -> int:
    """The most calls that were in work together, of those that ended."""
    records = server.log()
    edges = [(record.started_s, 1) for record in records] + [
        (record.ended_s or 0.0, -1) for record in records
    ]
    at_once = most = 0
    for _, change in sorted(edges):
        at_once += change
        most = max(most, at_once)
    return most


@pytest.mark.asyncio
async def test_a_flood_leaves_the_other_pools_slot_free_and_the_device_is_never_asked_for_more(
    tmp_path: Path,
) -> None:
    async with ModelServerProcess() as server, shared_device(server, tmp_path) as rig:
        heavy = await rig.work("heavy-1")
        light = await rig.work("light-1", pool=rig.fleet.pools[1])
        flood = [await rig.submit(scripted(**WORK), priority="batch") for _ in range(24)]
        await until(lambda: heavy.worker.in_flight() == SLOTS - 1)
        assert slots_of(light) == 1
        await rig_submit(rig, "light-task")
        await rig.started("light-task")
        assert heavy.worker.in_flight() == SLOTS - 1
        for task in [*flood, "light-task"]:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert most_at_once(server) == SLOTS


async def rig_submit(rig: WorkerRig, task_id: str) -> None:
    """A task on the lane of the pool `light`."""
    heavy, rig.pool = rig.pool, rig.fleet.pools[1]
    try:
        await rig.submit(scripted(**WORK), task_id=task_id)
    finally:
        rig.pool = heavy


@pytest.mark.asyncio
async def test_who_wants_more_than_its_reserve_gets_its_share_as_tries_end_and_gives_it_back(
    tmp_path: Path,
) -> None:
    async with (
        ModelServerProcess() as server,
        shared_device(server, tmp_path, claim_falls_after_s=0.2) as rig,
    ):
        heavy = await rig.work("heavy-1")
        light = await rig.work("light-1", pool=rig.fleet.pools[1])
        flood = [await rig.submit(scripted(**WORK), priority="batch") for _ in range(40)]
        await until(lambda: heavy.worker.in_flight() == SLOTS - 1)
        own = [f"light-{number}" for number in range(12)]
        for task in own:
            await rig_submit(rig, task)
        await until(lambda: (heavy.worker.in_flight(), light.worker.in_flight()) == (2, 2))
        for task in own:
            assert isinstance(await rig.end(task), TaskSucceeded)
        await until(lambda: heavy.worker.in_flight() == SLOTS - 1)
        await until(lambda: device_of(heavy) == device_of(light))
        for task in flood:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert most_at_once(server) <= SLOTS
        # acquired equals released: once nothing is wanted, everybody is back at its reserve
        await until(lambda: device_of(heavy) == {"heavy": (1, 0), "light": (1, 0)})


@pytest.mark.asyncio
async def test_workers_of_one_pool_share_its_part_and_who_leaves_gives_it_to_the_other(
    tmp_path: Path,
) -> None:
    async with ModelServerProcess() as server, shared_device(server, tmp_path) as rig:
        one, two = await rig.work("heavy-1"), await rig.work("heavy-2")
        flood = [
            await rig.submit(scripted(**WORK), priority="batch", partition=number % 2) for number in range(40)
        ]
        await until(
            lambda: slots_of(one) + slots_of(two) == SLOTS - 1 and min(slots_of(one), slots_of(two)) > 0
        )
        await two.stop()
        await until(lambda: slots_of(one) == SLOTS - 1)
        keys = {record.key for record in rig.bus.records(NAMES.fleet) if record.value is None}
        assert b"device/gpu/heavy-2" in keys
        for task in flood:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert most_at_once(server) <= SLOTS


@pytest.mark.asyncio
async def test_a_worker_that_cannot_read_the_fleet_stops_starting_before_others_may_have_its_slots(
    tmp_path: Path,
) -> None:
    async with ModelServerProcess() as server, shared_device(server, tmp_path, device_expires_s=1.5) as rig:
        heavy = await rig.work("heavy-1")
        await until(lambda: slots_of(heavy) == 1)
        rig.bus.freeze()
        await until(lambda: slots_of(heavy) == 0)
        rig.bus.thaw()
        await until(lambda: slots_of(heavy) == 1)


@pytest.mark.asyncio
async def test_claims_are_quiet_while_nothing_changes(tmp_path: Path) -> None:
    async with ModelServerProcess() as server, shared_device(server, tmp_path) as rig:
        heavy = await rig.work("heavy-1")
        await until(lambda: slots_of(heavy) == 1)

        def claims() -> int:
            keys = [record.key for record in rig.bus.records(NAMES.fleet)]
            return keys.count(b"device/gpu/heavy-1")

        await until(lambda: not heavy.worker._crew.presence.claims or claims() >= 1)
        await asyncio.sleep(0.5)
        before = claims()
        assert before <= 3
        await asyncio.sleep(1.0)  # twenty looks at what is wanted
        assert claims() == before


def test_a_claim_is_keyed_by_device_and_worker() -> None:
    claim = SlotClaim(sent_ms=1, worker="heavy-1", pool="heavy", device="gpu", wants=1, uses=0)
    assert claim.key == "device/gpu/heavy-1"
