"""Who is a member of a lane's group, asked of the broker, and what the log says of one task."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import orjson
from aiokafka.admin import AIOKafkaAdminClient

from loadtest.kills.evidence import Evidence, read_all
from loadtest.model_server.attempts import AttemptRecord
from loadtest.stage import Stage
from schemas.topics import TopicNames


class GroupWatch:
    """`async with GroupWatch(stage, group, every_s)`: counts rebalances, each a new set of members."""

    def __init__(self, stage: Stage, group: str, every_s: float) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=stage.bootstrap_servers)
        self._group = group
        self._every_s = every_s
        self._watching: asyncio.Task[None] | None = None
        self.memberships: list[frozenset[str]] = []

    @property
    def rebalances(self) -> int:
        """Since the watch began."""
        return max(0, len(self.memberships) - 1)

    async def __aenter__(self) -> Self:
        await self._admin.start()
        self._watching = asyncio.create_task(self._watch(), name="watch the group")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._admin.close()

    async def _watch(self) -> None:
        while True:
            members = await self._settled()
            if members and self.memberships[-1:] != [members]:
                self.memberships.append(members)
            await asyncio.sleep(self._every_s)

    async def _settled(self) -> frozenset[str]:
        """The ids of its members; none while a rebalance is under way."""
        (response,) = await self._admin.describe_consumer_groups([self._group])
        ((_, _, state, _, _, members, *_),) = response.groups
        return frozenset(member[0] for member in members) if state == "Stable" else frozenset()


def tried_twice(records: Sequence[AttemptRecord], evidence: Evidence) -> tuple[str, ...]:
    """Calls with more than one try at the model server: how each ended there, and the ledger's rows."""
    tries: dict[str, list[AttemptRecord]] = {}
    for record in (one for one in records if one.marker):  # a warm-up has none
        tries.setdefault(record.marker, []).append(record)
    return tuple(
        f"{marker}: " + ", ".join(_words(record, evidence.ledger) for record in found)
        for marker, found in tries.items()
        if len(found) > 1
    )


def _words(record: AttemptRecord, ledger: Mapping[str, Mapping[str, Any]]) -> str:
    row = ledger.get(record.attempt or "")
    told = "no row" if row is None else f"{row['state']} {row['verdict']} by {row['worker']}"
    return f"{record.started_s:.3f} for {record.seconds or 0:.3f} s {record.outcome} ({told})"


@dataclass(frozen=True, slots=True)
class Parkings:
    """Records of one task: rows it was parked with, renewals of them, each with the attempt that it names."""

    rows: list[str] = field(default_factory=list)
    renewals: list[str] = field(default_factory=list)


async def parkings(stage: Stage, task_id: str) -> Parkings:
    """Read from the whole log by a plain consumer."""
    found = Parkings()
    results = TopicNames(stage.fleet.prefix).results
    for record in await read_all(stage.bootstrap_servers, [results], stage.fleet.partitions):
        if record.key != task_id.encode() or dict(record.headers).get("type") != b"TaskParked":
            continue
        value: dict[str, Any] = orjson.loads(record.value)
        (found.rows if value.get("envelope") else found.renewals).append(value["attempt"])
    return found
