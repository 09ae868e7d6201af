"""Cancels: read from `control` before the first task starts, kept as tombstones until their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.codec import SchemaError, decode
from schemas.headers import to_text
from schemas.messages import CancelTask
from services.ports import BusError, Clock, InRecord, LogReader, StartAt
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
_PAUSE_S = 0.2
_READ_RECORDS = 1_000


class Control:
    """`caught_up` is set once everything that may still matter was read; nothing may start before."""

    def __init__(
        self, reader: LogReader, clock: Clock, knobs: WorkerKnobs, cancel: Callable[[CancelTask], None]
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._knobs = knobs
        self._cancel = cancel
        self.caught_up = asyncio.Event()

    async def start(self) -> None:
        since_s = self._clock.now_s() - self._knobs.longest_deadline_s
        await self._reader.start(at=StartAt("time", int(since_s * 1000)))

    async def stop(self) -> None:
        await self._reader.stop()

    async def read_forever(self) -> None:
        while True:
            try:
                records = await self._reader.poll(timeout_ms=self._knobs.poll_ms, max_records=_READ_RECORDS)
            except BusError as fault:
                log.warning("control not read", fault=str(fault))
                await asyncio.sleep(_PAUSE_S)
                continue
            for record in records:
                self._take(record)
            if not self.caught_up.is_set() and self._reader.caught_up():
                self.caught_up.set()

    def _take(self, record: InRecord) -> None:
        if record.value is None:
            return  # compaction's own mark
        try:
            message = decode(to_text(record.headers), record.value)
        except SchemaError as fault:
            log.warning("not a control record", offset=record.offset, fault=str(fault))
            return
        if isinstance(message, CancelTask):
            self._cancel(message)
