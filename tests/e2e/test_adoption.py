"""Real Kafka and processes: a pool without workers, a tail, a drained pool; and who may not see the work."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uuid_utils

from loadtest.kills.evidence import read_all
from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from schemas.codec import decode_fleet, encode, message_headers
from schemas.fleet_messages import PoolMode, PoolOrder, WorkerBeat
from schemas.headers import TaskHeaders, to_text
from schemas.messages import RunTask
from schemas.payload import Payload
from tests.e2e.fault_fleet import CLIENT_TIMEOUT_S, WORKER, body, pid_of, ready, text_of
from tests.e2e.staged import Scripted, new_marker, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCALE = 0.1  # lanes are adopted after 3 s
SLOTS = 2
HANGS = {"hang_after_chunks": 1}
FLEET = """version: 1
prefix: {prefix}
partitions: 4
pools:
  - name: scripted
    model: breaking
    base_url: {own}
    slots: {slots}
    context_tokens: 8192
    fallbacks: [outside]
    prior_seconds: 0.5
  - name: outside
    model: other
    provider: somebody
    external: true
    base_url: {outside}
    slots: 8
    context_tokens: 8192
    prior_seconds: 0.5
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outside() -> AsyncIterator[ModelServerProcess]:
    async with ModelServerProcess(model="other", chunks=6) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    kafka_possible: None, outside: ModelServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scripted]:
    """Pools `scripted` (ours) and `outside`; each test leaves all of its processes running."""
    async with ModelServerProcess(model="breaking", chunks=6) as own:
        text = FLEET.format(
            prefix=f"e{uuid.uuid4().hex[:8]}.", own=own.base_url, outside=outside.base_url, slots=SLOTS
        )
        environment = {"CHIMERA_TIME_SCALE": str(SCALE)}
        options = StageOptions(tmp_path_factory.mktemp("two"), text, "kafka", environment=environment)
        async with Stage(options) as stage:
            yield Scripted(stage, own)


async def ask(fleet: Scripted, fields: dict[str, Any], **headers: str) -> httpx.Response:
    named = {f"x-chimera-{name.replace('_', '-')}": value for name, value in headers.items()}
    async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False) as client:
        url = f"{fleet.stage.url}/v1/chat/completions"
        return await client.post(url, json=fields, headers={"x-request-id": fields["x_marker"], **named})


def seen_by(server: ModelServerProcess, markers: list[str]) -> Counter[str]:
    """How often each of these calls was answered there."""
    return Counter(one.marker for one in server.log() if one.marker in markers)


async def put(producer: Any, fleet: Scripted, marker: str, script: dict[str, Any], **task: Any) -> None:
    """A task on partition 0 of our own pool's lane, without the ingress."""
    task_id, now_ms = str(uuid_utils.uuid7()), int(time.time() * 1000)
    record = RunTask(
        task_id=task_id, pool="scripted", arrived_ms=now_ms, body=Payload(inline=body(marker, script)), **task
    )
    headers = TaskHeaders(marker, now_ms + 60_000, 0).to_wire()
    lane = fleet.names.lane("scripted", "interactive")
    await producer.send_and_wait(lane, encode(record), key=task_id.encode(), headers=headers, partition=0)


async def order(producer: Any, fleet: Scripted, mode: PoolMode) -> None:
    message = PoolOrder(sent_ms=int(time.time() * 1000), pool="scripted", mode=mode)
    headers = message_headers(message)
    await producer.send_and_wait(
        fleet.names.fleet, encode(message), key=message.key.encode(), headers=headers
    )


async def living(fleet: Scripted) -> dict[str, WorkerBeat]:
    """The newest beat of each worker, by pool and worker."""
    found: dict[str, WorkerBeat] = {}
    for record in await read_all(fleet.stage.bootstrap_servers, [fleet.names.fleet], 1):
        key = (record.key or b"").decode()
        if key.startswith("worker/"):
            found.pop(key, None)
            beat = None if record.value is None else decode_fleet(to_text(record.headers), record.value)
            if isinstance(beat, WorkerBeat):
                found[key] = beat
    return found


async def adopted(fleet: Scripted) -> bool | None:
    """Whether the external pool's worker says that it has our three lanes."""
    lanes = [beat.adopted for beat in (await living(fleet)).values() if beat.pool == "outside"]
    return True if lanes and len(lanes[0]) == 3 else None


async def own_again(fleet: Scripted) -> bool | None:
    """Whether our pool's worker owns its whole lane, and nobody says that it adopted anything."""
    lane, beats = fleet.names.lane("scripted", "interactive"), (await living(fleet)).values()
    owners = [beat.pool for beat in beats if len(beat.owns.get(lane, ())) == 4]
    return True if "scripted" in owners and not any(beat.adopted for beat in beats) else None


async def kill_for_good(fleet: Scripted, name: str) -> None:
    """SIGKILL, and its supervisor does not start another: stopped first, it cannot say goodbye."""
    pid, service = pid_of(fleet, name), fleet.stage.services[name]
    os.kill(pid, signal.SIGSTOP)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    await stopping


async def test_a_tail_is_handed_to_a_worker_that_is_free(fleet: Scripted, producer: Any) -> None:
    await fleet.stage.start_another(WORKER, "worker-twin")
    try:

        async def shared() -> bool | None:
            lane = fleet.names.lane("scripted", "interactive")
            owns = [len(beat.owns.get(lane, ())) for beat in (await living(fleet)).values()]
            return True if sorted(owns)[-2:] == [2, 2] else None

        await until(shared, "two workers that own two partitions each")
        markers = [new_marker() for _ in range(24)]
        for marker in markers:
            script = {"text": marker, "delay_s": 0.5}
            await put(producer, fleet, marker, script, data_policy="local")  # else the fallback helps too
        for marker in markers:
            await fleet.ended(marker)
        rows = [row for marker in markers for row in await fleet.ledger(marker)]
        assert len(rows) == len(markers)  # none was tried twice
        assert len({row["worker"] for row in rows}) == 2
        assert {row["pool"] for row in rows} == {"scripted"}
    finally:
        await fleet.stage.services["worker-twin"].stop()


async def test_what_waits_in_a_drained_pool_moves_unless_it_may_not(
    fleet: Scripted, outside: ModelServerProcess, producer: Any
) -> None:
    running = [new_marker() for _ in range(SLOTS)]
    for marker in running:
        await put(producer, fleet, marker, {"text": marker, "delay_s": 4.0})
    for marker in running:
        await fleet.at_work(marker)
    waiting = [new_marker() for _ in range(5)]
    local = new_marker()
    for marker in waiting:
        await put(producer, fleet, marker, {"text": marker})
    await put(producer, fleet, local, {"text": local}, data_policy="local")
    await order(producer, fleet, "draining")

    async def moved() -> bool | None:
        return True if seen_by(outside, waiting) == dict.fromkeys(waiting, 1) else None

    await until(moved, "what waited is done outside")
    for marker in running:
        assert [one.outcome for one in await fleet.ended(marker)] == ["ok"]
    assert fleet.attempts(local) == []
    await order(producer, fleet, "running")
    await fleet.ended(local)
    assert seen_by(outside, [local]) == {}
    assert [one.marker for one in fleet.server.log() if one.marker in waiting] == []


async def test_the_lanes_of_a_dead_pool_are_adopted_and_are_its_own_again_when_it_lives(
    fleet: Scripted, outside: ModelServerProcess
) -> None:
    running, queued, local = (
        [new_marker() for _ in range(SLOTS)],
        [new_marker() for _ in range(4)],
        new_marker(),
    )
    asked = {"model": "scripted"}
    chats = [
        asyncio.create_task(
            ask(fleet, body(m, {"id": m, "tries": [HANGS, {"text": m}]}) | asked, deadline_ms="80000")
        )
        for m in running
    ]
    for marker in running:
        await fleet.at_work(marker)
    chats += [asyncio.create_task(ask(fleet, body(m) | asked)) for m in queued]
    kept = asyncio.create_task(ask(fleet, body(local) | asked, data_policy="local", deadline_ms="80000"))
    await asyncio.sleep(0.5)
    await kill_for_good(fleet, WORKER)

    answers = [text_of(answer) for answer in await asyncio.gather(*chats)]
    assert answers == [*running, *queued]
    assert set(seen_by(outside, queued)) == set(queued)

    await until(lambda: adopted(fleet), "the lanes are adopted")
    late = new_marker()
    assert text_of(await ask(fleet, body(late) | asked)) == late
    assert seen_by(outside, [late]) == {late: 1}
    assert not kept.done()

    await fleet.stage.services[WORKER].start()
    await ready(fleet, WORKER)
    assert text_of(await kept) == local
    assert seen_by(outside, [local]) == {}
    await until(lambda: own_again(fleet), "the lane is its own again")
    home = new_marker()
    assert text_of(await ask(fleet, body(home) | asked)) == home
    assert seen_by(outside, [home]) == {}
