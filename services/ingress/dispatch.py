"""Tasks out to the lanes."""

from __future__ import annotations

import time

import orjson

from schemas.codec import encode
from schemas.headers import TaskHeaders
from schemas.messages import RunTask
from schemas.payload import INLINE_LIMIT_BYTES, Claim, Payload
from schemas.topics import TopicNames
from services.core.placement import RandomUnit, place
from services.core.work_size import weighted_tokens
from services.ingress.call import Call
from services.ingress.closes import MOST_ACK_S, Background, Closes
from services.ingress.fleet_load import FleetLoad, Lane, Load
from services.ingress.tracing import WorkSpan
from services.ports import BlobStore, BusError, OutRecord, Publisher
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_view import FleetView


class NotAccepted(Exception):  # noqa: N818 - reads as the outcome it is
    """The broker did not acknowledge the task in time; whether it has it is unknown."""


class Dispatcher:
    """Writes RunTask to lanes; has what the other writers of this replica share."""

    def __init__(
        self,
        publisher: Publisher,
        fleet: CurrentFleet,
        blobs: BlobStore,
        random_unit: RandomUnit,
        instance: str,
        send_again_s: float,
        view: FleetView | None = None,
    ) -> None:
        self._publisher = publisher
        self._names = TopicNames(fleet.now.prefix)
        self._blobs = blobs
        self._random_unit = random_unit
        self.load = Load()
        self.fleet_load = FleetLoad(fleet, self.load, view)
        self.background = Background()
        self.closes = Closes(publisher, self._names, instance, send_again_s, self.background)

    def bus_is_away(self) -> bool:
        """Whether a task would wait in vain: the broker is gone for longer than a send is waited for."""
        return self._publisher.away_s() >= MOST_ACK_S

    def lane_for(self, call: Call) -> Lane:
        options = call.options
        topic = self._names.lane(call.pool.name, options.priority)
        view = self.fleet_load.lane(topic)
        return Lane(topic, place(view, options.session_id, options.affinity, self._random_unit))

    async def send(self, call: Call, body: Payload, lane: Lane) -> None:
        """Returns when the broker has the task, and so must answer for it. Raises NotAccepted."""
        headers = TaskHeaders(
            request_id=call.record.request_id,
            deadline_ms=call.deadline_ms,
            result_partition=call.result_partition,
            reply_partition=call.reply_partition,
            tenant=call.tenant,
            tokens=weighted_tokens(call.admitted.input_tokens, call.admitted.output_tokens),
        )
        await self.publish(_run_task(call, body), headers, lane, call.record.span)

    async def publish(self, task: RunTask, headers: TaskHeaders, lane: Lane, span: WorkSpan) -> None:
        """As `send`, of a task that is ready to go; the traceparent is that of its span below `span`."""
        sending, traceparent = span.sending(lane.topic, lane.partition, headers.request_id)
        headers = headers.with_changes(traceparent=traceparent)
        key = task.task_id.encode()
        record = OutRecord(lane.topic, key, encode(task), headers.to_wire(), lane.partition)
        timeout_s = min(MOST_ACK_S, headers.deadline_ms / 1000 - time.time())
        try:
            await self._publisher.send(record, timeout_s=max(timeout_s, 0.001))
        except BusError as fault:
            raise NotAccepted(str(fault)) from fault
        finally:
            sending.end()

    async def payload(self, raw: bytes) -> Payload:
        """The body as it travels. Raises OSError where a large one cannot be stored."""
        if len(raw) <= INLINE_LIMIT_BYTES:
            return Payload(inline=orjson.Fragment(raw))
        key, sha256 = await self._blobs.put(raw)
        return Payload(claim=Claim(key=key, sha256=sha256, size=len(raw)))


def _run_task(call: Call, body: Payload) -> RunTask:
    options = call.options
    return RunTask(
        task_id=call.task_id,
        kind=call.kind,
        tenant=call.tenant,
        priority=options.priority,
        objective=options.objective,
        pool=call.pool.name,
        model=call.admitted.model,
        stream=call.streaming,
        required_capabilities=options.required_capabilities,
        features=tuple(sorted(call.admitted.features)),
        input_tokens=call.admitted.input_tokens,
        output_tokens=call.admitted.output_tokens,
        data_policy=options.data_policy,
        session_id=options.session_id,
        affinity=options.affinity,
        keep_answer=call.key is not None,
        arrived_ms=call.record.arrived_ms,
        body=body,
    )
