"""A fleet on real Apache Kafka for tests that break it, and the chats that are under way meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import psutil
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from loadtest.kills.evidence import TERMINAL, Evidence, gather
from schemas.topics import PRIORITIES
from tests.e2e.staged import Scripted, until

WORKER = "worker-scripted"
CLIENT_TIMEOUT_S = 90.0


def body(marker: str, script: dict[str, Any] | None = None, *, stream: bool = False) -> dict[str, Any]:
    """A chat whose answer is its own marker, unless the script says otherwise."""
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"say {marker}"}],
        "stream": stream,
        "x_marker": marker,
        "x_script": {"text": marker} if script is None else script,
    }


async def ask(url: str, fields: dict[str, Any]) -> httpx.Response:
    """One unstreamed chat; its x-request-id is its marker."""
    async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False) as client:
        headers = {"x-request-id": fields["x_marker"]}
        return await client.post(f"{url}/v1/chat/completions", json=fields, headers=headers)


async def ask_streamed(url: str, fields: dict[str, Any]) -> str:
    """The text of a streamed chat; AssertionError unless it ends with [DONE]."""
    lines = []
    async with httpx.AsyncClient(timeout=CLIENT_TIMEOUT_S, trust_env=False) as client:
        headers = {"x-request-id": fields["x_marker"]}
        request = client.stream("POST", f"{url}/v1/chat/completions", json=fields, headers=headers)
        async with request as answer:
            assert answer.status_code == httpx.codes.OK, (await answer.aread()).decode()
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1:] == ["data: [DONE]"], lines[-2:]
    events = [httpx.Response(200, content=line.removeprefix("data: ")).json() for line in lines[:-1]]
    assert not any("error" in event for event in events), events
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == httpx.codes.OK, answer.text
    content = answer.json()["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


async def outcomes(fleet: Scripted, markers: Sequence[str]) -> dict[str, list[str]]:
    """The types of the terminal records of each request, in log order, read by a plain consumer."""
    evidence = await everything(fleet)
    tasks = {request: task for task, request in evidence.accepted.items()}
    return {
        marker: [kind for kind, _ in evidence.terminals.get(tasks.get(marker, ""), []) if kind in TERMINAL]
        for marker in markers
    }


async def everything(fleet: Scripted) -> Evidence:
    stage = fleet.stage
    pools = [pool.name for pool in stage.fleet.pools]
    names = fleet.names
    return await gather(stage.bootstrap_servers, names, pools, stage.fleet.partitions, stage.database_url)


async def gone(pid: int) -> None:
    """Returns once the process has ended."""

    async def look() -> bool | None:
        alive = psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return None if alive else True

    await until(look, f"the end of process {pid}")


async def ready(fleet: Scripted, name: str) -> None:
    """Returns once the process of that name answers that it is ready, also after a restart."""
    url = fleet.stage.services[name].spec.ready_url

    async def look() -> bool | None:
        try:
            async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
                return True if (await client.get(url)).status_code == httpx.codes.OK else None
        except httpx.HTTPError:
            return None

    await until(look, f"{name} ready")


def pid_of(fleet: Scripted, name: str) -> int:
    pid = fleet.stage.services[name].pid
    assert pid is not None
    return pid


@asynccontextmanager
async def unwritable(fleet: Scripted, name: str) -> AsyncIterator[None]:
    """The broker refuses every record for the topic (too large) and takes commits as ever."""
    topic = next(topic for topic in fleet.stage.fleet.topics() if topic.name == name)
    await _configure(fleet, name, {**topic.config, "max.message.bytes": "1"})
    try:
        yield
    finally:
        await _configure(fleet, name, topic.config)


def unwritable_results(fleet: Scripted) -> AbstractAsyncContextManager[None]:
    return unwritable(fleet, fleet.names.results)


async def _configure(fleet: Scripted, topic: str, config: Mapping[str, str]) -> None:
    """Sets all of a topic's config: what is left out falls back to the broker's defaults."""
    async with _admin(fleet) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(config))
        (response,) = await admin.alter_configs([resource])
        assert [code for code, *_ in response.resources] == [0]


async def committed(fleet: Scripted) -> int:
    """The sum of what the worker's groups have committed, over all lanes of the pool and their partitions."""
    names, total = fleet.names, 0
    async with _admin(fleet) as admin:
        for priority in PRIORITIES:
            lane = names.lane("scripted", priority)
            partitions = [TopicPartition(lane, index) for index in range(fleet.stage.fleet.partitions)]
            group = names.lane_group("scripted", priority)
            found = await admin.list_consumer_group_offsets(group, partitions=partitions)
            total += sum(max(0, found[partition].offset) for partition in partitions)
    return total


@asynccontextmanager
async def _admin(fleet: Scripted) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=fleet.stage.bootstrap_servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def finished(chats: Sequence[asyncio.Task[httpx.Response]]) -> list[str]:
    """The texts of chats that were under way; each must be answered."""
    return [text_of(answer) for answer in await asyncio.gather(*chats)]
