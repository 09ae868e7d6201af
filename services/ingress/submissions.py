"""Tasks from `submissions`: the ingresses consume it as one group, admit and route as they do for HTTP.

Law: a submission's offset is done once another record, acknowledged, holds its task or ends it: RunTask on a
lane, TaskFailed where it is refused, `tasks.dead` or `kept` where it is no task of ours. After a crash before
the commit the submission is read again and there may be a second RunTask of the same task_id: the first
terminal record is the task's outcome for everybody. Both lane records stand in one partition, so that the
worker which holds the first, or ended it within ten minutes, attaches or skips the second: it rarely runs
twice.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry import trace

from schemas.codec import encode, message_headers
from schemas.failures import FailureKind
from schemas.headers import TaskHeaders
from schemas.messages import Failure, RunTask, TaskFailed
from schemas.payload import Payload
from schemas.topics import TopicNames
from services.core.placement import stable_partition
from services.core.routing import Load as PoolLoad
from services.core.work_size import weighted_tokens
from services.ingress.closes import MOST_ACK_S
from services.ingress.dispatch import Dispatcher, NotAccepted
from services.ingress.fleet_load import Lane
from services.ingress.settings import IngressKnobs
from services.ingress.submitted import Odd, Routed, Submission, read_submission, route_submission
from services.ingress.tracing import WorkSpan, taken_submission
from services.ports import Assigned, BlobStore, BusError, GroupSource, InRecord, OutRecord, Publisher
from services.runtime.current_fleet import CurrentFleet
from services.runtime.group_offsets import GroupOffsets, Taken
from services.runtime.set_aside import dead_record, fitted, kept_record

_log = structlog.get_logger("chimera.ingress")
_PAUSE_S = 0.05
_LEAVES_S = 5.0  # for what is in flight when the service ends; what is not settled comes again


@dataclass(frozen=True, slots=True)
class SubmissionPorts:
    """What submissions are read from and written with."""

    source: GroupSource
    publisher: Publisher
    dispatcher: Dispatcher
    blobs: BlobStore
    fleet: CurrentFleet
    knobs: IngressKnobs


class Submissions:
    """An AssignmentListener and its poll loop; at most `submissions_in_flight` records are under way."""

    def __init__(self, ports: SubmissionPorts) -> None:
        self._ports, self._knobs = ports, ports.knobs
        self._names = TopicNames(ports.fleet.now.prefix)
        self._offsets = GroupOffsets(ports.source, self._names.submissions_group)
        self._tracer = trace.get_tracer("chimera.ingress")
        self._under_way: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._large = asyncio.Lock()
        self._stopping = False
        self.joined = False

    async def revoked(self, _partitions: Collection[int]) -> None:
        await self._offsets.commit()

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self._offsets.assigned(partitions)
        self.joined = True

    async def run(self) -> None:
        """Reads until `stop`; a fault of the bus is waited out, any other ends it."""
        try:
            await self._ports.source.start(self)
        except BusError:  # stopped before it joined
            return
        committing = asyncio.create_task(self._offsets.commit_forever(self._knobs.commit_every_s))
        try:
            while not self._stopping:
                for taken in self._offsets.take(await self._poll()):
                    if not (taken.known or self._stopping):  # what is known is under way
                        self._begin(taken)
                await asyncio.sleep(0)
        finally:
            committing.cancel()

    async def stop(self) -> None:
        """Finishes what is under way, commits, leaves the group."""
        self._stopping = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_LEAVES_S)
        for task in self._under_way:
            task.cancel()
        await self._offsets.commit()
        await self._ports.source.stop()

    async def _poll(self) -> list[InRecord]:
        room = self._knobs.submissions_in_flight - len(self._under_way)
        partitions = self._offsets.readable()
        if room <= 0 or partitions == ():
            self._freed.clear()
            await _within(self._freed.wait(), _PAUSE_S)
            return []
        try:
            return await self._ports.source.poll(
                timeout_ms=self._knobs.submissions_poll_ms,
                max_records=min(room, self._knobs.submissions_records),
                partitions=partitions,
            )
        except BusError as fault:
            _log.warning("submissions not read", error=str(fault))
            await asyncio.sleep(_PAUSE_S)
            return []

    def _begin(self, taken: Taken) -> None:
        task = asyncio.create_task(self._settle(taken))
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._freed.set()

    # one submission

    async def _settle(self, taken: Taken) -> None:
        """Returns when another record holds or ends the task, and the offset is done."""
        record, task_id = taken.record, None
        try:
            found = await read_submission(record, self._ports.fleet.now, _now_ms())
            if isinstance(found, Odd):
                await self._put_aside(record, found)
            else:
                task_id = found.task.task_id
                await self._submit(record, found)
        except Exception as fault:  # noqa: BLE001 - as the next line says
            # A record that we fail on must not stop its partition: its bytes wait for who mends the fault.
            where = "".join(traceback.format_tb(fault.__traceback__)[-3:])  # its message may quote the body
            _log.error("a submission failed inside", fault=type(fault).__name__, where=where)
            reason = f"the ingress failed on it: {type(fault).__name__}"
            await self._put_aside(record, Odd("dead", reason, task_id, FailureKind.INTERNAL))
        self._offsets.done(taken.place)

    async def _put_aside(self, record: InRecord, odd: Odd) -> None:
        place = f"{record.topic}/{record.partition}@{record.offset}"
        _log.error("not a submission", fate=odd.fate, reason=odd.reason, task_id=odd.task_id, record=place)
        if odd.fate == "kept":
            aside = kept_record(record, self._names, None)
        else:
            aside = dead_record(record, self._names, odd.reason)
        await self._deliver(await fitted(aside, self._ports.blobs))
        if odd.task_id is not None and aside.topic == self._names.dead:
            failure = Failure(kind=odd.kind, message=odd.reason)
            failed = TaskFailed(task_id=odd.task_id, ended_ms=_now_ms(), failure=failure)
            await self._deliver(self._result(failed, odd.task_id))

    async def _submit(self, record: InRecord, found: Submission) -> None:
        group = self._names.submissions_group
        span = taken_submission(self._tracer, record, found.traceparent, group)
        try:
            failure = await self._placed(found, span)
            if failure is not None:
                await self._refuse(found, failure)
        finally:
            span.end({"chimera.request_id": found.request_id, "chimera.task_id": found.task.task_id})

    async def _placed(self, found: Submission, span: WorkSpan) -> Failure | None:
        """Returns None once a lane has the task, else why none will; tries until its deadline."""
        while True:
            load = self._ports.dispatcher.fleet_load.pools()
            try:
                routed = await self._routed(found, load)
                if isinstance(routed, Failure):
                    return routed
                await self._publish(found, routed, span)
            except (NotAccepted, OSError) as fault:  # the broker, or the blob store, is away
                _log.warning("submission not placed", task_id=found.task.task_id, error=str(fault))
                await asyncio.sleep(self._knobs.send_again_s)
            else:
                _log.info(
                    "submitted",
                    task_id=found.task.task_id,
                    request_id=found.request_id,
                    pool=routed.pool.name,
                )
                return None

    async def _routed(self, found: Submission, load: PoolLoad) -> Routed | Failure:
        if found.task.body.claim is None:
            return await route_submission(found, self._ports.fleet.now, load, self._ports.blobs, _now_ms())
        async with self._large:  # up to 8 MiB each
            return await route_submission(found, self._ports.fleet.now, load, self._ports.blobs, _now_ms())

    async def _publish(self, found: Submission, routed: Routed, span: WorkSpan) -> None:
        task, fleet, dispatcher = found.task, self._ports.fleet.now, self._ports.dispatcher
        body = task.body if routed.raw is None else await dispatcher.payload(routed.raw)
        headers = TaskHeaders(
            request_id=found.request_id,
            deadline_ms=routed.deadline_ms,
            result_partition=stable_partition(task.task_id, fleet.partitions),
            tenant=task.tenant,
            tokens=weighted_tokens(routed.admitted.input_tokens, routed.admitted.output_tokens),
        )
        # By session or by task, never by load: a second record of the task must meet the first.
        partition = stable_partition(task.session_id or task.task_id, fleet.partitions)
        lane = Lane(self._names.lane(routed.pool.name, task.priority), partition)
        await dispatcher.publish(_run_task(found, routed, body), headers, lane, span)

    async def _refuse(self, found: Submission, failure: Failure) -> None:
        task = found.task
        _log.info(
            "submission refused", task_id=task.task_id, request_id=found.request_id, reason=failure.code
        )
        failed = TaskFailed(
            task_id=task.task_id, tenant=task.tenant, kind=task.kind, ended_ms=_now_ms(), failure=failure
        )
        await self._deliver(self._result(failed, found.request_id))

    def _result(self, failed: TaskFailed, request_id: str) -> OutRecord:
        partition = stable_partition(failed.task_id, self._ports.fleet.now.partitions)
        headers = message_headers(failed, request_id=request_id)
        return OutRecord(self._names.results, failed.task_id.encode(), encode(failed), headers, partition)

    async def _deliver(self, record: OutRecord) -> None:
        """Returns once the record is acknowledged, however long that takes; it may then be there twice."""
        while True:
            try:
                return await self._ports.publisher.send(record, timeout_s=MOST_ACK_S)
            except BusError as fault:
                _log.warning("record not acknowledged, sent again", topic=record.topic, error=str(fault))
            await asyncio.sleep(self._knobs.send_again_s)


def _run_task(found: Submission, routed: Routed, body: Payload) -> RunTask:
    task = found.task
    return RunTask(
        task_id=task.task_id,
        kind=task.kind,
        tenant=task.tenant,
        priority=task.priority,
        objective=task.objective,
        pool=routed.pool.name,
        model=routed.admitted.model,
        required_capabilities=task.required_capabilities,
        features=tuple(sorted(routed.admitted.features)),
        input_tokens=routed.admitted.input_tokens,
        output_tokens=routed.admitted.output_tokens,
        data_policy=task.data_policy,
        session_id=task.session_id,
        affinity=task.affinity,
        keep_answer=task.keep_answer,
        arrived_ms=found.arrived_ms,
        body=body,
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


async def _within(work: Coroutine[Any, Any, Any], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        pass
