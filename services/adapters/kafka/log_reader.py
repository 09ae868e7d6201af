"""The LogReader port on aiokafka: partitions by assign(), without a group, from a place of our own choice.

Law: assign() is called once for each consumer and the positions are set in the same step, before the fetcher
can run: assigning again would forget them, and records sent right after would be skipped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import TopicPartition

from services.adapters.kafka.consumers import close_consumer, furthest, in_records, new_consumer
from services.adapters.kafka.end_offsets import end_offsets
from services.adapters.kafka.faults import LIBRARY_FAULTS, bus_error
from services.adapters.kafka.stall import StallCheck, StallWatch
from services.adapters.kafka.traits import BrokerTraits
from services.adapters.kafka.watchdog import Watchdog
from services.ports import BusError, InRecord, StartAt

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_STOP_S = 3.0


class KafkaLogReader:
    """LogReader port. `restarts` counts consumers that were replaced because they had stopped.

    `time` where the broker cannot look times up reads from the beginning.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        traits: BrokerTraits,
        *,
        topic: str,
        partitions: Collection[int],
        client_id: str,
        fetch_max_wait_ms: int,
        request_timeout_s: float = 12.0,
        stall_s: float = 30.0,
    ) -> None:
        self._bootstrap_servers, self._traits = bootstrap_servers, traits
        self._topic, self._client_id = topic, client_id
        self._assigned = tuple(TopicPartition(topic, partition) for partition in sorted(set(partitions)))
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._request_timeout_s, self._stall_s = request_timeout_s, stall_s
        self._consumer: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._positions: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._stamps: dict[Any, int] = {}
        self._answered_s: dict[Any, float] = {}
        self._watch = StallWatch(stall_s)
        self._check = StallCheck(
            self._watch, ends=self._ends, position=self._furthest, forgetful=not traits.durable
        )
        self._watchdog = Watchdog(
            f"reader of {topic}", every_s=stall_s / 8, why_stalled=self._why_stalled, restart=self._restart
        )

    @property
    def restarts(self) -> int:
        return self._watchdog.restarts

    async def start(self, *, at: StartAt) -> None:
        """Returns when every position is known, however long that takes; BusError when stopped before."""
        self._opening = asyncio.create_task(self._open(at))
        await asyncio.wait({self._opening})
        if self._opening.cancelled():
            raise BusError("the reader was stopped before it knew its positions")
        self._opening.result()
        self._watchdog.start()

    async def stop(self) -> None:
        await self._watchdog.stop()
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._close()

    async def poll(self, *, timeout_ms: int, max_records: int) -> list[InRecord]:
        """Records in offset order for each partition; [] after `timeout_ms` without one. Raises BusError."""
        consumer = self._consumer
        if consumer is None:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        clock = asyncio.get_running_loop().time
        self._watch.began(self._positions.keys(), clock())
        try:
            batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
            if self._behind:
                await self._note_progress(consumer)
            if consumer is not self._consumer:
                return []  # replaced while we waited; the new one begins at the same positions
            self._note_answers(consumer)
            records = self._taken(batches)  # nothing may fail from here on: our positions are past them
        except LIBRARY_FAULTS as fault:
            if consumer is not self._consumer:
                return []
            self._watchdog.demand(f"poll failed: {fault!r}")
            raise bus_error(f"poll of {self._topic}", fault) from fault
        self._watch.ended((tp.partition for tp in batches), clock(), drained=len(records) < max_records)
        return records

    def silent_s(self) -> float:
        """Of the partition whose last answer was read longest ago."""
        now_s = time.monotonic()
        return max((now_s - answered_s for answered_s in self._answered_s.values()), default=math.inf)

    def caught_up(self) -> bool:
        return bool(self._positions) and not self._behind

    def position(self, partition: int) -> int | None:
        """The next offset that poll will return; None before start."""
        return self._positions.get(partition)

    def _note_answers(self, consumer: Any) -> None:
        # By our clock, from when we see it: the library's stamp is of the wall clock, which may be set.
        for tp in self._assigned:
            stamp = consumer.last_poll_timestamp(tp)
            if stamp is not None and stamp != self._stamps.get(tp):
                self._stamps[tp], self._answered_s[tp] = stamp, time.monotonic()

    def _taken(self, batches: Mapping[Any, list[Any]]) -> list[InRecord]:
        records: list[InRecord] = []
        for tp, batch in batches.items():
            self._positions[tp.partition] = batch[-1].offset + 1
            records += in_records(batch)
        return records

    async def _note_progress(self, consumer: Any) -> None:
        # The library's position, not ours: it also passes what compaction and markers left without a record.
        for partition, end in tuple(self._behind.items()):
            if await consumer.position(TopicPartition(self._topic, partition)) >= end:
                del self._behind[partition]

    async def _open(self, at: StartAt | None) -> None:
        """Reads from `at`, or (None) from where the last consumer stood. Tries until the broker answers."""
        while True:
            consumer = new_consumer(
                self._bootstrap_servers,
                client_id=self._client_id,
                fetch_max_wait_ms=self._fetch_max_wait_ms,
                request_timeout_s=self._request_timeout_s,
            )
            try:
                await consumer.start()
                ends = await self._ends([tp.partition for tp in self._assigned])
                positions = self._resumed(ends) if at is None else await self._begin(consumer, at, ends)
            except (BusError, *LIBRARY_FAULTS) as fault:
                log.warning("reader of %s cannot start: %r", self._topic, fault)
                await close_consumer(consumer, within_s=_STOP_S)
                await asyncio.sleep(_RETRY_S)
            except BaseException:
                await close_consumer(consumer, within_s=_STOP_S)
                raise
            else:
                if at is not None:
                    self._behind = {p: end for p, end in ends.items() if positions[p] < end}
                self._read_from(consumer, positions)
                return

    def _resumed(self, ends: Mapping[int, int]) -> dict[int, int]:
        # A broker that keeps nothing begins its log anew: all that is there now came after our start.
        forgets = not self._traits.durable
        return {p: 0 if forgets and ends[p] < offset else offset for p, offset in self._positions.items()}

    def _read_from(self, consumer: Any, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)
        self._answered_s = dict.fromkeys(self._assigned, time.monotonic())  # it told where the ends are
        self._watch.forget()
        consumer.assign(list(self._assigned))
        for tp in self._assigned:
            consumer.seek(tp, positions[tp.partition])
        self._consumer = consumer

    async def _begin(self, consumer: Any, at: StartAt, ends: Mapping[int, int]) -> dict[int, int]:
        if at.where == "end":
            return dict(ends)
        if at.where == "time" and self._traits.offsets_for_times:
            found = await consumer.offsets_for_times(dict.fromkeys(self._assigned, at.time_ms or 0))
            return {
                tp.partition: ends[tp.partition] if place is None else place.offset
                for tp, place in found.items()
            }
        starts = await consumer.beginning_offsets(list(self._assigned))
        return {tp.partition: offset for tp, offset in starts.items()}

    async def _ends(self, partitions: Collection[int]) -> dict[int, int]:
        return await end_offsets(
            self._bootstrap_servers,
            self._traits,
            topic=self._topic,
            partitions=partitions,
            client_id=self._client_id,
            timeout_s=self._request_timeout_s,
        )

    async def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer, within_s=_STOP_S)

    async def _restart(self) -> None:
        await self._close()
        await self._open(None)

    async def _why_stalled(self) -> str | None:
        return await self._check.why_stalled(asyncio.get_running_loop().time())

    async def _furthest(self, partition: int) -> int | None:
        if self._consumer is None:
            return None
        known = self._positions[partition]
        at = await furthest(self._consumer, TopicPartition(self._topic, partition), known)
        self._positions[partition] = max(at, self._positions[partition])
        return self._positions[partition]
