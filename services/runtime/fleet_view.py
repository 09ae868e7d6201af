"""`fleet` as a service sees it: read whole at the start, then followed; the table is core's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.codec import SchemaError, Unknown, decode_fleet
from schemas.fleet_messages import FleetMessage
from schemas.headers import to_text
from services.core.fleet_table import FleetTable
from services.ports import BusError, InRecord, LogReader, StartAt

log = structlog.get_logger(__name__)
Listener = Callable[[InRecord, FleetMessage | None], None]
_POLL_MS = 250
_PAUSE_S = 0.5
_SILENCE_S = 1.0  # without an answer of the broker for longer, silence says nothing about the workers


class FleetView:
    """`listeners` hear every record after the table has it; `steady_s` is a clock that never jumps."""

    def __init__(self, reader: LogReader, table: FleetTable, steady_s: Callable[[], float]) -> None:
        self._reader = reader
        self._steady_s = steady_s
        self.table = table
        self.listeners: list[Listener] = []
        self.caught_up = asyncio.Event()

    def now_s(self) -> float:
        """The clock that the table's times are on."""
        return self._steady_s()

    async def run(self) -> None:
        """Until cancelled. A broker that is away is waited for."""
        await self._reader.start(at=StartAt("beginning"))
        try:
            await self._follow()
        finally:
            await self._reader.stop()

    async def _follow(self) -> None:
        looked_s = self._steady_s()
        while True:
            try:
                records = await self._reader.poll(timeout_ms=_POLL_MS, max_records=500)
            except BusError as fault:
                log.warning("fleet not read", fault=str(fault))
                await asyncio.sleep(_PAUSE_S)
                records = []
            now_s = self._steady_s()
            if self._reader.silent_s() > _SILENCE_S:
                self.table.paused(now_s - looked_s)
            looked_s = now_s
            for record in records:
                self._take(record, now_s)
            if self._reader.caught_up():
                self.caught_up.set()

    def _take(self, record: InRecord, now_s: float) -> None:
        if record.key is None:
            return
        message: FleetMessage | None = None
        if record.value is not None:
            try:
                decoded = decode_fleet(to_text(record.headers), record.value)
            except SchemaError as fault:
                log.warning("record on fleet not read", offset=record.offset, fault=str(fault))
                return
            if isinstance(decoded, Unknown):
                return
            message = decoded
        self.table.apply(record.key.decode("utf-8", "replace"), message, now_s)
        for listener in self.listeners:
            listener(record, message)
