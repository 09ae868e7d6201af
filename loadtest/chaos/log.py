"""A plain Kafka consumer: what stands on the lanes and on `results` from a moment on."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from loadtest.chaos.evidence import Evidence, LogRecord
from schemas.topics import PRIORITIES, TopicNames

_POLL_MS = 300
Positions = Mapping[TopicPartition, int]


class LogReader:
    """`async with LogReader(...)`: stands at the ends of everything, or at `since`; `read_on` adds what is
    new of the tasks of that run."""

    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        pools: list[str],
        partitions: int,
        since: Positions | None = None,
    ) -> None:
        self._names, self._bootstrap, self._since = names, bootstrap, since
        lanes = [names.lane(pool, priority) for pool in pools for priority in PRIORITIES]
        topics = [*lanes, names.results]
        self._all = [TopicPartition(topic, index) for topic in topics for index in range(partitions)]
        self._consumer: Any = None
        self.positions: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
        await self._consumer.start()
        self._consumer.assign(self._all)
        self.positions = dict(self._since or await self._consumer.end_offsets(self._all))
        for partition, offset in self.positions.items():
            self._consumer.seek(partition, offset)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._consumer.stop()

    async def read_on(self, evidence: Evidence, run_id: str) -> None:
        """Adds the records between where it stands and the ends of this moment."""
        ends = await self._consumer.end_offsets(self._all)
        while left := [one for one in self._all if self.positions[one] < ends[one]]:
            for partition, batch in (await self._consumer.getmany(*left, timeout_ms=_POLL_MS)).items():
                for record in batch:
                    self._add(evidence, record, run_id)
                self.positions[partition] = batch[-1].offset + 1

    def _add(self, evidence: Evidence, record: Any, run_id: str) -> None:
        headers = {name: value.decode() for name, value in record.headers}
        request_id = headers.get("request_id", "")
        task_id = (record.key or b"").decode()
        if not (request_id.startswith(f"{run_id}-") or task_id in evidence.accepted):
            return
        if record.topic != self._names.results:
            evidence.accepted.setdefault(task_id, set()).add(request_id)
            return
        evidence.records.append(
            LogRecord(
                record.partition,
                record.offset,
                record.timestamp,
                headers.get("type", ""),
                task_id,
                request_id,
                orjson.loads(record.value),
            )
        )
