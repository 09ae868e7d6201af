"""Two pools on one device, each a worker process with a model server of its own, on real Apache Kafka."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from tests.e2e.fault_fleet import CLIENT_TIMEOUT_S, ready, text_of
from tests.e2e.staged import Scripted, new_marker, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEVICE_SLOTS = 4
TASK_S = 0.8
TIME_SCALE = 0.4  # claims expire after 4 s
FLEET = """
version: 1
prefix: {prefix}
partitions: 4
devices:
  - name: gpu
    slots: {slots}
pools:
  - {{name: heavy, model: heavy-1, base_url: {heavy}, slots: 8, device: gpu, device_reserved: 1}}
  - {{name: light, model: light-1, base_url: {light}, slots: 8, device: gpu, device_reserved: 1}}
"""


@dataclass(frozen=True, slots=True)
class Shared:
    """The fleet and the two model servers that stand for one device."""

    stage: Stage
    heavy: ModelServerProcess
    light: ModelServerProcess

    async def ask(self, pool: str, marker: str) -> httpx.Response:
        fields = {
            "model": pool,
            "messages": [{"role": "user", "content": f"say {marker}"}],
            "x_marker": marker,
            "x_script": {"text": marker, "delay_s": TASK_S},
        }
        headers = {
            "x-request-id": marker,
            "x-chimera-priority": "batch" if pool == "heavy" else "interactive",
        }
        async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False) as client:
            url = f"{self.stage.url}/v1/chat/completions"
            return await client.post(url, json=fields, headers=headers)

    def flood(self, pool: str, count: int) -> list[asyncio.Task[httpx.Response]]:
        return [asyncio.create_task(self.ask(pool, new_marker())) for _ in range(count)]

    async def slots(self, of: str) -> dict[tuple[str, str], int]:
        """Slots of the device by pool and kind, as the worker of pool `of` shows them."""
        ready_url = self.stage.services[f"worker-{of}"].spec.ready_url
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            shown = (await client.get(ready_url.replace("/readyz", "/metrics"))).text
        return {
            (sample.labels["pool"], sample.labels["kind"]): int(sample.value)
            for family in text_string_to_metric_families(shown)
            for sample in family.samples
            if sample.name == "chimera_device_slots"
        }

    async def granted(self, of: str, pool: str, least: int, most: int = DEVICE_SLOTS) -> None:
        """Returns once the worker of pool `of` shows so many as granted to `pool`."""

        async def look() -> bool | None:
            shown = (await self.slots(of)).get((pool, "granted"), -1)
            return True if least <= shown <= most else None

        await until(look, f"{least} to {most} slots of the device granted to {pool}")

    async def at_work(self, server: ModelServerProcess, count: int) -> None:
        async def look() -> bool | None:
            return True if len(await server.running_attempts()) >= count else None

        await until(look, f"{count} tries at work")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """One fleet for this module; each test leaves all of its processes running."""
    workdir: Path = tmp_path_factory.mktemp("devices")
    async with ModelServerProcess(model="heavy") as heavy, ModelServerProcess(model="light") as light:
        prefix = f"d{uuid.uuid4().hex[:8]}."
        fleet = FLEET.format(prefix=prefix, slots=DEVICE_SLOTS, heavy=heavy.base_url, light=light.base_url)
        options = StageOptions(workdir, fleet, "kafka", environment={"CHIMERA_TIME_SCALE": str(TIME_SCALE)})
        async with Stage(options) as stage:
            yield Shared(stage, heavy, light)


def tries_of(server: ModelServerProcess) -> list[AttemptRecord]:
    """Without the warm-up, which is no task's."""
    return [record for record in server.log() if record.marker is not None]


def at_once(records: list[AttemptRecord]) -> int:
    """The most tries that were at work together."""
    edges = [(one.started_s, 1) for one in records] + [(one.ended_s or 0.0, -1) for one in records]
    now = most = 0
    for _, change in sorted(edges):
        now += change
        most = max(most, now)
    return most


def running_at(records: list[AttemptRecord], at_s: float) -> int:
    return sum(one.started_s <= at_s < (one.ended_s or 0.0) for one in records)


async def test_a_request_of_the_light_pool_starts_while_the_heavy_one_floods_the_device(
    shared: Shared,
) -> None:
    flood = shared.flood("heavy", 36)
    await shared.at_work(shared.heavy, DEVICE_SLOTS - 1)
    for _ in range(4):
        marker = new_marker()
        assert text_of(await shared.ask("light", marker)) == marker
    assert not all(chat.done() for chat in flood)
    for chat in await asyncio.gather(*flood):
        text_of(chat)

    heavy, light = tries_of(shared.heavy), tries_of(shared.light)
    assert at_once(heavy) == DEVICE_SLOTS - 1  # it borrowed all that was idle
    assert at_once([*heavy, *light]) == DEVICE_SLOTS
    for one in light:
        assert running_at(heavy, one.started_s) >= 1, one
    assert {one.outcome for one in [*heavy, *light]} == {"ok"}


async def test_q13_slots_of_a_killed_worker_come_free_and_those_of_ended_work_go_back(shared: Shared) -> None:
    """kill -9: its claim expires some time after its last word; until then nobody is granted its slots."""
    flood = shared.flood("heavy", 40)
    await shared.granted("light", "heavy", DEVICE_SLOTS - 1)
    pid = shared.stage.services["worker-heavy"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    own = shared.flood("light", 30)
    killed_s = time.time()
    await shared.granted("light", "light", 2)
    print(f"slots of the killed worker were free after {time.time() - killed_s:.1f} s")
    for chat in await asyncio.gather(*flood, *own):
        text_of(chat)

    await ready(Scripted(shared.stage, shared.heavy), "worker-heavy")
    records = [*tries_of(shared.heavy), *tries_of(shared.light)]
    assert at_once(records) == DEVICE_SLOTS
    # acquired equals released: both pools are back at their reserve
    await shared.granted("light", "heavy", 1, most=1)
    await shared.granted("heavy", "light", 1, most=1)
