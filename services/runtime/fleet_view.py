"""`fleet` as a service sees it: read whole at the start, then followed; the table is core's.

Law: a worker's silence is measured only while this reader reads. A broker that is away, or a process that
was stopped, makes nobody dead: the table's times move on by what was missed (`FleetTable.paused`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.codec import SchemaError, Unknown, decode_fleet
from schemas.fleet_messages import FleetMessage
from schemas.headers import to_text
from services.core.fleet_table import DEAD_AFTER_S, FleetTable
from services.ports import BusError, InRecord, LogReader, StartAt

log = structlog.get_logger(__name__)
Listener = Callable[[InRecord, FleetMessage | None], None]
_POLL_MS = 250
_MOST_RECORDS = 2_000
_PAUSE_S = 0.5
_SILENCE_S = 1.0  # without an answer of the broker for longer, silence says nothing about the workers
_FORGET_EVERY_S = 30.0


class FleetView:
    """`listeners` hear every record after the table has it; `steady_s` is a clock that never jumps.

    At the start only the newest beat of each worker is heard, once all is read: it is as old as the log says.
    """

    def __init__(self, reader: LogReader, table: FleetTable, steady_s: Callable[[], float]) -> None:
        self._reader = reader
        self._steady_s = steady_s
        self._looked_s = steady_s()
        self._missed_s = 0.0  # of the pause under way
        self._forget_at_s = self._looked_s + _FORGET_EVERY_S
        self._early: dict[bytes, InRecord] = {}
        self.table = table
        self.listeners: list[Listener] = []
        self.caught_up = asyncio.Event()

    def now_s(self) -> float:
        """The clock that the table's times are on: it waits for a reader that lags behind."""
        return min(self._steady_s(), self._looked_s + _SILENCE_S)

    async def run(self) -> None:
        """Until cancelled. A broker that is away is waited for."""
        try:
            await self._reader.start(at=StartAt("beginning"))
            self._looked_s = self._steady_s()
            while True:
                await self._look()
        finally:
            await self._reader.stop()

    async def _look(self) -> None:
        records: list[InRecord] = []
        try:
            records = await self._reader.poll(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
        except BusError as fault:
            log.warning("fleet not read", fault=str(fault))
            await asyncio.sleep(_PAUSE_S)
        now_s = self._steady_s()
        self._note_pause(now_s)
        for record in records:
            self._take(record, now_s)
        if not self.caught_up.is_set() and self._reader.caught_up():
            self._begin(now_s)
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + _FORGET_EVERY_S
            self.table.forget(now_s)

    def _note_pause(self, now_s: float) -> None:
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        if self._reader.silent_s() > _SILENCE_S or elapsed_s > _SILENCE_S:
            self.table.paused(elapsed_s)
            self._missed_s += elapsed_s
        elif self._missed_s:
            self.table.resumed(now_s, min(self._missed_s, DEAD_AFTER_S))
            self._missed_s = 0.0

    def _take(self, record: InRecord, now_s: float) -> None:
        if record.key is None:
            return
        if not self.caught_up.is_set() and record.key.startswith(b"worker/"):
            self._early.pop(record.key, None)  # the newest of each, in the order of the log
            self._early[record.key] = record
        else:
            self._apply(record.key, record, now_s)

    def _begin(self, now_s: float) -> None:
        """All that was there is read."""
        early, self._early = self._early, {}
        newest_ms = max((record.timestamp_ms for record in early.values()), default=0)
        for key, record in early.items():
            self._apply(key, record, now_s - max(0.0, (newest_ms - record.timestamp_ms) / 1000))
        self.caught_up.set()

    def _apply(self, key: bytes, record: InRecord, heard_s: float) -> None:
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
        name = key.decode("utf-8", "replace")
        if message is not None and message.key != name:  # who it tells of could not be seen dead
            why = f"key: expected {message.key[:64]!r}"
            log.warning("record on fleet not read", offset=record.offset, fault=why)
            return
        self.table.apply(name, message, heard_s)
        for listener in self.listeners:
            listener(record, message)
