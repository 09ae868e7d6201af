"""The GroupSource port on aiokafka: one member of one group on one topic, restarted when it stops silently.

Law: no record of a partition is returned before the listener was told of its assignment (it is paused until
then), and none after it was told of the revocation. The poller and the listener share no lock: aiokafka runs
the listener inside its own coordination, which a poll may be waiting for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError

from services.adapters.kafka.assignment import GroupTopic, read_assigned
from services.adapters.kafka.consumers import (
    close_consumer,
    coordination_fault,
    furthest,
    in_records,
    new_consumer,
    sticky_assignor,
)
from services.adapters.kafka.end_offsets import end_offsets
from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.stall import StallCheck, StallWatch
from services.adapters.kafka.traits import BrokerTraits
from services.adapters.kafka.watchdog import Watchdog
from services.ports import AssignmentListener, BusError, Commit, CommitRefused, InRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupTimings:
    """Seconds. `assign_s` stays below `session_s`: no heartbeat is sent while an assignment is read."""

    session_s: float = 6.0
    heartbeat_s: float = 1.0
    rebalance_s: float = 30.0
    max_poll_interval_s: float = 3600.0
    request_s: float = 12.0
    commit_s: float = 5.0
    revoke_commit_s: float = 0.8
    assign_s: float = 2.0
    stall_s: float = 30.0
    stop_s: float = 5.0
    retry_s: float = 0.5


class KafkaGroupSource:
    """GroupSource port. `restarts` counts consumers that were replaced because they had stopped."""

    def __init__(
        self,
        bootstrap_servers: str,
        traits: BrokerTraits,
        *,
        topic: str,
        group: str,
        client_id: str,
        fetch_max_wait_ms: int,
        timings: GroupTimings | None = None,
    ) -> None:
        self._place = GroupTopic(bootstrap_servers, traits, topic, group, client_id)
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._timings = timings or GroupTimings()
        self._listener: AssignmentListener | None = None
        self._consumer: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._stopped = False
        self._revoking = False
        self._joining_since_s = 0.0
        self._positions: dict[int, int] = {}
        self._watch = StallWatch(self._timings.stall_s)
        self._check = StallCheck(
            self._watch, ends=self._ends, position=self._furthest, forgetful=not traits.durable
        )
        self._watchdog = Watchdog(
            f"consumer of {topic}",
            every_s=self._timings.stall_s / 8,
            why_stalled=self._why_stalled,
            restart=self._restart,
        )

    @property
    def restarts(self) -> int:
        return self._watchdog.restarts

    async def start(self, listener: AssignmentListener) -> None:
        """Returns once this member joined, however long that takes; BusError when stopped before."""
        self._listener = listener
        self._opening = asyncio.create_task(self._open())
        await asyncio.wait({self._opening})
        if self._opening.cancelled():
            raise BusError("the source was stopped before it joined")
        self._opening.result()
        self._watchdog.start()

    async def stop(self) -> None:
        """Leaves the group without a word to the listener; nothing is committed."""
        self._stopped = True
        await self._watchdog.stop()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._close()

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        """As the port says; during a rebalance it may return later than `timeout_ms`, when that is over."""
        consumer = self._consumer
        owned = self._positions.keys()
        wanted = owned if partitions is None else owned & set(partitions)
        if consumer is None or not wanted:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        asked = [] if partitions is None else [self._at(partition) for partition in wanted]
        clock = asyncio.get_running_loop().time
        self._watch.began(wanted, clock())
        try:
            batches = await consumer.getmany(*asked, timeout_ms=timeout_ms, max_records=max_records)
        except LIBRARY_FAULTS as fault:
            if consumer is not self._consumer:
                return []  # it was closed while we waited
            self._watchdog.demand(f"poll failed: {fault!r}")
            raise bus_error(f"poll of {self._place.topic}", fault) from fault
        if consumer is not self._consumer:
            return []  # uncommitted: they come again
        return self._taken(batches, max_records, clock())

    async def commit(self, commits: Mapping[int, Commit]) -> None:
        consumer = self._consumer
        if not commits:
            return
        if consumer is None or any(partition not in self._positions for partition in commits):
            raise CommitRefused(f"not assigned: some of {sorted(commits)} of {self._place.topic}")
        keeps = self._place.traits.commit_metadata_bytes > 0
        offsets = {self._at(p): (c.offset, c.metadata if keeps else "") for p, c in commits.items()}
        bound_s = self._timings.revoke_commit_s if self._revoking else self._timings.commit_s
        try:
            async with asyncio.timeout(bound_s):
                await consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError) as fault:
            raise CommitRefused(f"{self._place.group} has moved on") from fault
        except LIBRARY_FAULTS as fault:
            raise bus_error(f"commit to {self._place.group}", fault) from fault

    def high_water(self, partition: int) -> int | None:
        if self._consumer is None or partition not in self._positions:
            return None
        high_water: int | None = self._consumer.highwater(self._at(partition))
        return high_water

    def position(self, partition: int) -> int | None:
        return self._positions.get(partition)

    def assignment(self) -> Collection[int]:
        return frozenset(self._positions)

    def _at(self, partition: int) -> Any:
        return TopicPartition(self._place.topic, partition)

    def _taken(self, batches: Mapping[Any, list[Any]], max_records: int, now_s: float) -> list[InRecord]:
        records: list[InRecord] = []
        for tp, batch in batches.items():
            self._positions[tp.partition] = batch[-1].offset + 1
            records += in_records(batch)
        returned = (tp.partition for tp in batches)
        self._watch.ended(returned, now_s, drained=len(records) < max_records)
        return records

    async def _open(self) -> None:
        while not self._stopped:
            consumer = self._consumer = self._new_consumer()
            self._joining_since_s = asyncio.get_running_loop().time()
            try:
                await consumer.start()
            except LIBRARY_FAULTS as fault:
                log.warning("%s cannot join %s: %r", self._place.client_id, self._place.group, fault)
            except BaseException:
                await self._close()
                raise
            else:
                return
            await self._close()
            await asyncio.sleep(self._timings.retry_s)

    def _new_consumer(self) -> Any:
        timings = self._timings
        consumer = new_consumer(
            self._place.bootstrap_servers,
            client_id=self._place.client_id,
            fetch_max_wait_ms=self._fetch_max_wait_ms,
            request_timeout_s=timings.request_s,
            group_id=self._place.group,
            session_timeout_ms=int(timings.session_s * 1000),
            heartbeat_interval_ms=int(timings.heartbeat_s * 1000),
            rebalance_timeout_ms=int(timings.rebalance_s * 1000),
            max_poll_interval_ms=int(timings.max_poll_interval_s * 1000),
            partition_assignment_strategy=(sticky_assignor(),),
        )
        consumer.subscribe([self._place.topic], listener=_Rebalances(self, consumer))
        return consumer

    async def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._positions = {}
        self._watch.forget()
        if consumer is not None:
            await close_consumer(consumer, within_s=self._timings.stop_s)

    async def _restart(self) -> None:
        if self._positions:
            await self._tell_revoked(self._consumer)
        await self._close()
        await self._open()

    async def _why_stalled(self) -> str | None:
        now_s = asyncio.get_running_loop().time()
        if (fault := coordination_fault(self._consumer)) is not None:
            return fault
        if not self._positions:
            waited_s = now_s - self._joining_since_s
            joining = self._joining_since_s > 0 and waited_s > 2 * self._timings.rebalance_s
            return f"no assignment for {waited_s:.0f} s" if joining else None
        return await self._check.why_stalled(now_s)

    async def _furthest(self, partition: int) -> int | None:
        known = self._positions.get(partition)
        if known is None or self._consumer is None:
            return None
        at = await furthest(self._consumer, self._at(partition), known)
        if partition not in self._positions:  # revoked while we asked
            return None
        self._positions[partition] = max(at, self._positions[partition])
        return self._positions[partition]

    async def _ends(self, partitions: Collection[int]) -> dict[int, int]:
        return await end_offsets(
            self._place.bootstrap_servers,
            self._place.traits,
            topic=self._place.topic,
            partitions=partitions,
            client_id=self._place.client_id,
            timeout_s=self._timings.request_s,
        )

    async def _tell_revoked(self, consumer: Any) -> None:
        if consumer is not self._consumer or self._listener is None or not self._positions:
            return
        self._revoking = True
        try:
            await self._listener.revoked(frozenset(self._positions))
        finally:
            self._revoking = False
            self._positions = {}
            self._watch.forget()
            self._joining_since_s = asyncio.get_running_loop().time()

    async def _tell_assigned(self, consumer: Any, partitions: Collection[int]) -> None:
        if consumer is not self._consumer or self._listener is None:
            return
        asked = [self._at(partition) for partition in partitions]
        consumer.pause(*asked)
        try:
            found = await read_assigned(self._place, consumer, partitions, timeout_s=self._timings.assign_s)
            self._positions = {partition: assigned.offset for partition, assigned in found.items()}
            self._joining_since_s = 0.0
            await self._listener.assigned(found)
        except Exception as fault:
            self._watchdog.demand(f"assignment failed: {fault!r}")
            raise
        consumer.resume(*asked)


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """What aiokafka calls inside its coordination, for one consumer of a source."""

    def __init__(self, source: KafkaGroupSource, consumer: Any) -> None:
        self._source = source
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:  # noqa: ARG002 - ours are all
        await self._source._tell_revoked(self._consumer)  # noqa: SLF001 - the other half of the source

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        partitions = {tp.partition for tp in assigned}
        await self._source._tell_assigned(self._consumer, partitions)  # noqa: SLF001 - as above
