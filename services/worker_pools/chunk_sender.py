"""Token chunks on their way to a waiting client: the first content at once, then every 40 ms or 32 events.

Nothing here is waited for: a chunk that is lost is repaired from the terminal record, which says how many
there were.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from schemas.codec import encode
from schemas.messages import ReplyChunk, Try
from schemas.topics import MAX_RECORD_BYTES
from services.ports import OutRecord, Publisher
from services.worker_pools.reports import headers_of
from services.worker_pools.settings import WorkerKnobs

_ROOM_FOR_HEADERS = 4_096
_HEADERS = headers_of(ReplyChunk)


class ChunkPump:
    """Hands chunk records to the chunk producer in order. Full: the newest are dropped, and counted."""

    def __init__(self, publisher: Publisher, topic: str, most: int, most_bytes: int) -> None:
        self._publisher = publisher
        self._topic = topic
        self._most = most
        self._room_bytes = most_bytes
        self._waiting: deque[tuple[OutRecord, int]] = deque()
        self._wake = asyncio.Event()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, key: bytes, value: bytes, partition: int) -> None:
        size, most = len(value), min(self._room_bytes, MAX_RECORD_BYTES - _ROOM_FOR_HEADERS)
        if len(self._waiting) >= self._most or size > most:
            self.dropped += 1
            return
        self._room_bytes -= size
        self._waiting.append((OutRecord(self._topic, key, value, _HEADERS, partition), size))
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                record, size = self._waiting.popleft()
                self._room_bytes += size
                await self._publisher.post(record)


class ChunkSender:
    """The chunks of one attempt. `sent` counts records, as the terminal record must say it."""

    __slots__ = (
        "_attempt",
        "_events",
        "_key",
        "_knobs",
        "_loop",
        "_partition",
        "_pump",
        "_task_id",
        "_timer",
        "_worker",
        "sent",
    )

    def __init__(self, pump: ChunkPump, knobs: WorkerKnobs, task_id: str, run: Try, partition: int) -> None:
        self._pump = pump
        self._knobs = knobs
        self._task_id = task_id
        self._key = task_id.encode()
        self._attempt, self._worker = run.attempt, run.worker
        self._partition = partition
        self._loop = asyncio.get_running_loop()
        self._events: list[dict[str, Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.sent = 0

    def add(self, events: list[dict[str, Any]]) -> None:
        """Events that came in one read; the first ones go at once."""
        held = self._events
        held += events
        most = self._knobs.chunk_events
        while len(held) >= most:
            self._send(held[:most])
            del held[:most]
        if not held:
            return
        if not self.sent:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._knobs.chunk_flush_s, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            self._send(self._events)
            self._events = []

    def _send(self, events: list[dict[str, Any]]) -> None:
        chunk = ReplyChunk.model_construct(
            task_id=self._task_id,
            attempt=self._attempt,
            seq=self.sent,
            events=events,
            worker=None if self.sent else self._worker,
        )
        self.sent += 1
        self._pump.put(self._key, encode(chunk), self._partition)
