"""What a worker says on the bus: records to `results` and `tasks.dead`, sent until they are acknowledged.

Law: nothing is let go of before the record that holds it next, or ends it, is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from schemas.codec import MAJOR, encode
from schemas.failures import FailureKind
from schemas.headers import LATE, WireHeaders
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    Failure,
    Message,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
    Try,
)
from schemas.topics import TopicNames
from services.ports import BusError, Clock, InRecord, Journal, OutRecord, Publisher, RecordTooLargeError
from services.runtime.set_aside import dead_record, kept_record
from services.worker_pools.held import Held
from services.worker_pools.intake import Odd
from services.worker_pools.settings import WorkerKnobs

log = structlog.get_logger(__name__)
_SAY_TIMES = 12  # a minute or more: the broker may be out for as long


def headers_of(kind: type[Message]) -> WireHeaders:
    """The wire headers that say what a record is, made once for each type."""
    return [("type", kind.__name__.encode()), ("v", str(MAJOR).encode())]


_WIRE_HEADERS: dict[type[Message], WireHeaders] = {
    kind: headers_of(kind) for kind in (AttemptStarted, AttemptFailed, TaskParked, TaskSucceeded, TaskFailed)
}


class Reports:
    """Writes records and waits for their acknowledgement. `unsent` counts records that wait for theirs."""

    def __init__(
        self,
        publisher: Publisher,
        names: TopicNames,
        worker: str,
        clock: Clock,
        knobs: WorkerKnobs,
        journal: Journal,
    ) -> None:
        self._publisher = publisher
        self._names = names
        self._clock = clock
        self._knobs = knobs
        self._journal = journal
        self._background: set[asyncio.Task[None]] = set()
        self._unheard: dict[str, float] = {}  # attempts being announced, since when; the oldest first
        self.worker = worker
        self.unsent = 0

    def now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    async def deliver(self, record: OutRecord) -> None:
        """Returns once the record is acknowledged, however long that takes; it may then be there twice.

        Raises RecordTooLargeError: it will never be, and the task must be held or ended by another one.
        """
        pause_s = self._knobs.send_again_s
        self.unsent += 1
        try:
            while True:
                try:
                    return await self._publisher.send(record, timeout_s=self._knobs.ack_timeout_s)
                except RecordTooLargeError:
                    raise
                except BusError as fault:
                    log.warning("record not acknowledged, sent again", topic=record.topic, fault=str(fault))
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, 8 * self._knobs.send_again_s)
        finally:
            self.unsent -= 1

    async def delivered_within(self, record: OutRecord, timeout_s: float) -> bool:
        """One try at an acknowledgement; False where it did not come in time."""
        try:
            await self._publisher.send(record, timeout_s=timeout_s)
        except BusError as fault:
            log.warning("record not acknowledged", topic=record.topic, fault=str(fault))
            return False
        return True

    async def announced(self, held: Held, run: Try, *, redelivered: bool, runs: bool) -> None:
        """Returns once the log has heard of the try. One that `runs` already is kept for the next worker
        where the log is slow: whoever dies with it would take it along."""
        loop, attempt = asyncio.get_running_loop(), run.attempt
        record = self.started(held, run, redelivered=redelivered)
        slow = loop.call_later(self._knobs.journal_s, self._journal.keep, attempt, record) if runs else None
        self._unheard[attempt] = loop.time()
        try:
            await self.deliver(record)
            self._journal.heard(attempt)
        finally:
            if slow is not None:
                slow.cancel()
            del self._unheard[attempt]

    async def say_left_behind(self, partitions: int) -> None:
        """Announces what workers of this machine died with, for the ledger. What cannot be said stays for the
        worker after this one; what is none of this fleet's is left out."""
        for left in self._journal.left_behind():
            ours = [each for each in left.records if self._is_ours(each, partitions)]
            late = [replace(each, headers=[*each.headers, (LATE, b"1")]) for each in ours]
            if not all([await self._said(each) for each in late]):
                log.error("tries of a worker that is gone could not be announced", tries=len(late))
                continue
            left.forget()
            if left.records:
                log.warning("announced for a worker that is gone", tries=len(ours), of=len(left.records))

    def _is_ours(self, record: OutRecord, partitions: int) -> bool:
        place = record.partition
        return record.topic == self._names.results and place is not None and 0 <= place < partitions

    async def _said(self, record: OutRecord) -> bool:
        for _ in range(_SAY_TIMES):
            if await self.delivered_within(record, self._knobs.ack_timeout_s):
                return True
            await self._clock.sleep(8 * self._knobs.send_again_s)
        return False

    def unheard_s(self) -> float:
        """For how long the oldest announcement under way has waited for the log; 0 where none is."""
        since_s = next(iter(self._unheard.values()), None)
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs beside the caller: for records that nothing waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self, within_s: float) -> None:
        """Gives what runs beside a last chance, then ends it."""
        if self._background:
            await asyncio.wait(self._background, timeout=within_s)
        for task in tuple(self._background):
            task.cancel()

    def result(self, held: Held, message: Message) -> OutRecord:
        return OutRecord(
            self._names.results,
            held.task_id.encode(),
            encode(message),
            self._with_request(_WIRE_HEADERS[type(message)], held),
            held.headers.result_partition,
        )

    def _with_request(self, headers: WireHeaders, held: Held) -> WireHeaders:
        more = [("request_id", held.headers.request_id.encode())]
        if held.headers.traceparent is not None:
            more.append(("traceparent", held.headers.traceparent.encode()))
        return headers + more

    def started(self, held: Held, run: Try, *, redelivered: bool) -> OutRecord:
        message = AttemptStarted(
            task_id=held.task_id,
            tenant=held.tenant,
            run=run,
            deadline_ms=held.headers.deadline_ms,
            redelivered=redelivered,
        )
        return self.result(held, message)

    def parked(self, held: Held, attempt: str, due_ms: int, *, envelope: bool) -> OutRecord:
        """This worker keeps the task until `due_ms`; with `envelope` the row is made, without it renewed."""
        message = TaskParked(
            task_id=held.task_id,
            attempt=attempt,
            holder=self.worker,
            due_ms=due_ms,
            deadline_ms=held.headers.deadline_ms,
            envelope=held.envelope() if envelope else None,
        )
        return self.result(held, message)

    def failed_untried(self, held: Held, failure: Failure) -> OutRecord:
        """The task is over and no try of it ran here."""
        message = TaskFailed(
            task_id=held.task_id,
            tenant=held.tenant,
            ended_ms=self.now_ms(),
            failure=failure,
            tries=held.headers.tries,
        )
        return self.result(held, message)

    def dead(self, held: Held, reason: str) -> OutRecord:
        key, (partition, offset) = held.task_id.encode(), held.origin
        record = InRecord(
            held.lane, partition, offset, held.written_ms, key, held.lane_value, held.lane_headers
        )
        return dead_record(record, self._names, reason, held.headers.tries)

    def put_away(self, odd: Odd) -> list[OutRecord]:
        """What must be acknowledged, in this order, before the odd record's offset is done."""
        if odd.fate == "kept":
            aside = kept_record(odd.record, self._names, odd.result_partition)
        else:
            aside = dead_record(odd.record, self._names, odd.reason, odd.tries)
        failed = self._failed_odd(odd) if aside.topic == self._names.dead else None
        return [aside] if failed is None else [aside, failed]

    def _failed_odd(self, odd: Odd) -> OutRecord | None:
        """The end of a task whose record cannot be read, where its id and partition can."""
        if odd.task_id is None or odd.result_partition is None:
            return None
        message = TaskFailed(
            task_id=odd.task_id,
            ended_ms=self.now_ms(),
            failure=Failure(kind=FailureKind.UNDECODABLE, message=odd.reason),
            tries=odd.tries,
        )
        return OutRecord(
            self._names.results,
            odd.task_id.encode(),
            encode(message),
            _WIRE_HEADERS[TaskFailed],
            odd.result_partition,
        )
