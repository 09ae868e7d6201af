"""What the bookkeeper owes to the bus, as records, and the sending of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from schemas.codec import encode, message_headers
from schemas.headers import SWEPT, to_wire
from schemas.messages import TaskClosed
from schemas.topics import TopicNames
from services.core.life.errands import OverdueTask, TakenTask
from services.core.life.rows import Effect, SendCancel, SendClosed, SendDead
from services.orchestrator.reading import MARK
from services.ports import BusError, InRecord, OutRecord, Publisher, RecordTooLargeError
from services.runtime.set_aside import dead_record

log = structlog.get_logger(__name__)


class Owed:
    """Makes the records. Pure but for the topics' names."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names

    def record(self, effect: Effect) -> OutRecord:
        if isinstance(effect, SendClosed):
            return self.closed(effect.closed, effect.partition, effect.request_id)
        if isinstance(effect, SendCancel):
            return self._cancel(effect)
        return self._dead(effect)

    def closed(self, closed: TaskClosed, partition: int, request_id: str) -> OutRecord:
        headers = message_headers(closed, request_id=request_id)
        return OutRecord(self._names.results, closed.task_id.encode(), encode(closed), headers, partition)

    def overdue(self, task: OverdueTask, at_ms: int) -> OutRecord:
        closed = TaskClosed(task_id=task.task_id, reason="deadline", by="bookkeeper", ended_ms=at_ms)
        return self.closed(closed, task.partition, task.request_id)

    def lane(self, task: TakenTask) -> OutRecord:
        """The lane record as it was, but for what its headers say of it now."""
        headers = to_wire({**task.headers, SWEPT: "1"})
        return OutRecord(task.lane, task.task_id.encode(), task.value, headers)

    def mark(self, partition: int, name: str) -> OutRecord:
        headers = to_wire({"type": MARK, "v": "1"})
        return OutRecord(self._names.results, b"sweep", name.encode(), headers, partition)

    def _dead(self, effect: SendDead) -> OutRecord:
        """As a worker buries it, but that the row alone held the task: it has no offset on its lane."""
        envelope, key = effect.envelope, effect.task_id.encode()
        headers = tuple(to_wire(envelope.headers))
        record = InRecord(envelope.lane, -1, -1, 0, key, envelope.value.encode(), headers)
        tries = envelope.headers.get("tries", "")
        known = tries.isascii() and tries.isdigit() and len(tries) < 10
        return dead_record(record, self._names, effect.reason, int(tries) if known else 0)

    def unsent(self, record: OutRecord, reason: str) -> OutRecord:
        """The dead letter of a record that its topic will never take; it has no offset there."""
        partition = -1 if record.partition is None else record.partition
        unwritten = InRecord(record.topic, partition, -1, 0, record.key, record.value, tuple(record.headers))
        return dead_record(unwritten, self._names, reason)

    def _cancel(self, effect: SendCancel) -> OutRecord:
        cancel = effect.cancel
        # `control` is compacted by key: the cancel of one attempt must not replace the task's own tombstone.
        key = cancel.task_id if cancel.attempt is None else f"{cancel.task_id}/{cancel.attempt}"
        return OutRecord(self._names.control, key.encode(), encode(cancel), message_headers(cancel))


async def send_each(
    publisher: Publisher,
    records: Sequence[OutRecord],
    *,
    timeout_s: float,
    instead: Callable[[OutRecord, str], Awaitable[OutRecord]] | None = None,
) -> list[OutRecord]:
    """Sends all, in their order, and waits for every acknowledgement; returns those that got none.

    `instead`: makes, with the reason, what is sent for a record that its topic will never take.
    """

    async def acknowledged(record: OutRecord) -> bool:
        try:
            await publisher.send(record, timeout_s=timeout_s)
        except RecordTooLargeError as fault:
            log.error("record too large", topic=record.topic, fault=str(fault))
            if instead is None:
                return False
            letter = await instead(record, str(fault))
            return not await send_each(publisher, [letter], timeout_s=timeout_s)
        except BusError as fault:
            log.warning("record not acknowledged", topic=record.topic, fault=str(fault))
            return False
        return True

    done = await asyncio.gather(*(acknowledged(record) for record in records))
    return [record for record, good in zip(records, done, strict=True) if not good]
