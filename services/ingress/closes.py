"""Closes: TaskClosed and CancelTask for tasks whose answer nobody waits for any more.

Law: what waits to be sent is bounded, in number and in size. A close holds ids and never the request, for it
may wait as long as the deadline is away; while the broker is gone, every request adds one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from schemas.codec import encode, message_headers
from schemas.messages import CancelTask, CloseReason, TaskClosed
from schemas.topics import TopicNames
from services.ports import BusError, OutRecord, Publisher

_log = structlog.get_logger("chimera.ingress")
_MOST_WAITING = 10_000  # some 5 MB; beyond it a task is left to its deadline
_MOST_SENDERS = 32
MOST_ACK_S = 5.0


class Background:
    """Work that outlives the request it came from; waited for when the service ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def finish(self, timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("background work failed", exc_info=fault)


@dataclass(frozen=True, slots=True)
class Unwanted:
    """A task to close: all that its two records need. `deadline_ms` is absolute."""

    task_id: str
    request_id: str
    result_partition: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class _Errand:
    task: Unwanted
    reason: CloseReason


class Closes:
    """Sends closes in the order they came, a few at a time."""

    def __init__(
        self,
        publisher: Publisher,
        names: TopicNames,
        instance: str,
        send_again_s: float,
        background: Background,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self._publisher = publisher
        self._names = names
        self._instance = instance
        self._send_again_s = send_again_s
        self._background = background
        self._most_waiting = most_waiting
        self._waiting: deque[_Errand] = deque()
        self._senders = 0

    def __len__(self) -> int:
        """How many wait for a sender."""
        return len(self._waiting)

    def soon(self, task: Unwanted, reason: CloseReason) -> None:
        """Closes a task in the background."""
        if len(self._waiting) >= self._most_waiting:
            _log.warning("close not sent: too many wait", task_id=task.task_id, reason=reason)
            return
        self._waiting.append(_Errand(task, reason))
        if self._senders < _MOST_SENDERS:
            self._senders += 1
            self._background.spawn(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                errand = self._waiting.popleft()
                await self._close(errand.task, errand.reason)
        finally:
            self._senders -= 1

    async def _close(self, task: Unwanted, reason: CloseReason) -> None:
        """TaskClosed, then CancelTask, each until it is acknowledged or the deadline has passed."""
        key = task.task_id.encode()
        now_ms = int(time.time() * 1000)
        closed = TaskClosed(task_id=task.task_id, reason=reason, by=self._instance, ended_ms=now_ms)
        cancel = CancelTask(task_id=task.task_id, deadline_ms=task.deadline_ms, reason=reason)
        headers = message_headers(closed, request_id=task.request_id)
        results = OutRecord(self._names.results, key, encode(closed), headers, task.result_partition)
        control = OutRecord(self._names.control, key, encode(cancel), message_headers(cancel))
        if await self._until_sent(results, task) and await self._until_sent(control, task):
            _log.info("closed", task_id=task.task_id, request_id=task.request_id, reason=reason)

    async def _until_sent(self, record: OutRecord, task: Unwanted) -> bool:
        while True:
            try:
                await self._publisher.send(record, timeout_s=MOST_ACK_S)
            except BusError as fault:
                if time.time() * 1000 >= task.deadline_ms:
                    _log.warning("close not sent", task_id=task.task_id, topic=record.topic, error=str(fault))
                    return False
                await asyncio.sleep(self._send_again_s)
            else:
                return True
