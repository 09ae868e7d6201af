"""What comes back for waiting requests: this replica's partitions of `results` and `replies`.

Law: a listener is registered before its task is sent, and the readers stand at the end before the service is
ready, so nothing that is meant for a listener is missed. Keys that nobody waits for are skipped unparsed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from schemas.codec import SchemaError, Unknown, decode
from schemas.headers import LATE, to_text
from schemas.messages import TERMINAL, Message
from services.ingress.bound_streams import BoundStreams
from services.ingress.tracing import Arrival
from services.ports import BusError, InRecord, LogReader, StartAt

_log = structlog.get_logger("chimera.ingress")
_POLL_MS = 500
_MOST_RECORDS = 500
_MOST_WAITING_BYTES = 4 * 1024 * 1024
_PAUSE_S = 0.2
_STALLED_S = 10.0
_DECISIVE = frozenset(message.__name__.encode() for message in TERMINAL)
_FOLLOWED = _DECISIVE | {b"AttemptStarted", b"AttemptFailed", b"ReplyChunk"}


class Listener:
    """One request's ear: records of its task, its client's hang-up, the end of the service.

    At most 4 MiB of chunks wait in it: a client that reads too slowly is cut off, not buffered for ever.
    """

    __slots__ = (
        "_bytes",
        "_loop",
        "_wake",
        "abandoned",
        "decided",
        "hung_up",
        "lost_worker",
        "news",
        "on_overflow",
        "streaming",
        "writing",
    )

    def __init__(self, *, streaming: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake: asyncio.Future[None] | None = None
        self._bytes = 0
        self.streaming = streaming
        self.news: deque[Message] = deque()
        self.decided: Arrival | None = None  # the task's first terminal record
        self.hung_up = False
        self.lost_worker = False  # the one whose attempt this stream follows is dead
        self.abandoned = False  # the service ends before the answer came
        self.writing = False  # a write to the client is blocked, or about to return
        self.on_overflow: Callable[[], None] | None = None  # called once

    def deliver(self, message: Message, size: int) -> None:
        self._bytes += size
        if self.writing and self._bytes > _MOST_WAITING_BYTES:
            if self.on_overflow is not None:
                self.on_overflow()
                self.on_overflow = None
            return
        self.news.append(message)
        self.wake()

    def take(self) -> list[Message]:
        taken = list(self.news)
        self.news.clear()
        self._bytes = 0
        return taken

    def hang_up(self) -> None:
        self.hung_up = True
        self.wake()

    def lose_worker(self) -> None:
        self.lost_worker = True
        self.wake()

    def abandon(self) -> None:
        self.abandoned = True
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def wait(self, until: float) -> None:
        """Returns when there is something new, or at `until` (the event loop's clock)."""
        if self.news or self.hung_up or self.lost_worker or self.abandoned:
            return
        self._wake = self._loop.create_future()
        timer = self._loop.call_at(until, self.wake)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake = None


class Inbox:
    """Reads both partitions and hands records to their listeners. `bound`: those with content."""

    def __init__(self, results: LogReader, replies: LogReader, bound: BoundStreams) -> None:
        self.bound = bound
        self._readers = (results, replies)
        self._listeners: dict[bytes, Listener] = {}
        self._polled = [0.0, 0.0]
        self.positioned = False
        self._stopping = False

    @property
    def healthy(self) -> bool:
        """Both readers are at their positions, their polls return, and it is the broker that answers them."""
        silent_s = max(time.monotonic() - min(self._polled), *(reader.silent_s() for reader in self._readers))
        return self.positioned and silent_s < _STALLED_S

    async def start(self) -> None:
        """Returns once what is sent from now on will be read. Raises BusError."""
        await asyncio.gather(*(reader.start(at=StartAt("end")) for reader in self._readers))
        self._polled = [time.monotonic()] * len(self._readers)
        self.positioned = True

    async def run(self) -> None:
        """Reads until `stop`; a fault of the bus is waited out, any other ends it."""
        async with asyncio.TaskGroup() as group:
            for index, reader in enumerate(self._readers):
                group.create_task(self._read(index, reader))

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*(reader.stop() for reader in self._readers))

    def end(self) -> None:
        """Asks `run` to return after its current polls."""
        self._stopping = True

    def register(self, task_id: str, listener: Listener) -> None:
        self._listeners[task_id.encode()] = listener

    def forget(self, task_id: str) -> None:
        self._listeners.pop(task_id.encode(), None)

    def abandon_all(self) -> None:
        for listener in list(self._listeners.values()):
            listener.abandon()

    async def _read(self, index: int, reader: LogReader) -> None:
        while not self._stopping:
            try:
                records = await reader.poll(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
            except BusError as fault:
                _log.warning("reading failed", reader=index, error=str(fault))
                await asyncio.sleep(_PAUSE_S)
                continue
            self._polled[index] = time.monotonic()
            for record in records:
                listener = self._listeners.get(record.key or b"")
                if listener is not None:
                    _hand_over(record, listener)


def _hand_over(record: InRecord, listener: Listener) -> None:
    wanted = _FOLLOWED if listener.streaming else _DECISIVE
    if not any(name == "type" and value in wanted for name, value in record.headers):
        return
    text = to_text(record.headers)
    if LATE in text:
        return
    try:
        message = decode(text, record.value)
    except SchemaError as fault:
        where = f"{record.topic}/{record.partition}@{record.offset}"
        _log.warning("record not understood", record=where, error=str(fault))
        return
    if isinstance(message, TERMINAL) and listener.decided is None:
        listener.decided = Arrival(record.topic, record.partition, record.offset, text.get("traceparent"))
    if not isinstance(message, Unknown):
        listener.deliver(message, len(record.value or b""))
