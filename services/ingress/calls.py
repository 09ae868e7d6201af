"""The calls of a model: admit, route, send, answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import uuid_utils
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from schemas.messages import TaskSucceeded
from services.core.admission import Admitted, BodyKind
from services.core.call_options import read_options, read_tenant
from services.core.field_checks import Refusal, expected
from services.core.placement import mint_for_partition, stable_partition
from services.core.stream_rebuild import Sent, remaining_events, usage_event
from services.ingress.body import admit_body, read_body
from services.ingress.call import Call, IdempotencyKey
from services.ingress.call_record import CallRecord, record_of
from services.ingress.dispatch import Dispatcher, NotAccepted
from services.ingress.errors import ApiError, deadline_passed, refused, unavailable
from services.ingress.floor import Floor
from services.ingress.inbox import Inbox
from services.ingress.joined import joined_stream
from services.ingress.keyed import KeyedCalls
from services.ingress.pool_choice import pool_for
from services.ingress.settings import IngressKnobs
from services.ingress.sse_form import replayed_stream
from services.ingress.streaming import begin_stream
from services.ingress.waiting import Waiting
from services.ingress.whole import CLIENT_GONE_STATUS, ClientGone, await_outcome, outcome_error, whole_answer
from services.ports import BlobStore, IdempotencyStore, StoredOutcome
from services.runtime.current_fleet import CurrentFleet

_MOST_KEY_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class CallPorts:
    """What the handlers work with; built by the composition root."""

    fleet: CurrentFleet
    inbox: Inbox
    dispatcher: Dispatcher
    blobs: BlobStore
    keys: IdempotencyStore
    instance: str
    knobs: IngressKnobs


class ModelCalls:
    """POST /v1/chat/completions, /v1/completions and /v1/embeddings."""

    def __init__(self, ports: CallPorts) -> None:
        self._ports = ports
        partitions = ports.fleet.now.partitions
        self._partition = stable_partition(ports.instance, partitions)
        self._floor = Floor(ports.knobs)
        self._keyed = KeyedCalls(ports.keys, ports.dispatcher, partitions, ports.knobs)

    async def chat(self, request: Request) -> Response:
        return await self._serve("chat", request)

    async def completion(self, request: Request) -> Response:
        return await self._serve("completion", request)

    async def embedding(self, request: Request) -> Response:
        return await self._serve("embedding", request)

    async def _serve(self, kind: BodyKind, request: Request) -> Response:
        record = record_of(request.scope)
        record.task_type = kind
        if not self._ports.inbox.positioned:  # an answer to it would go unread
            raise unavailable("This replica is starting.", "starting")
        try:
            raw = await read_body(record.headers, request.receive)
            call = self._call(kind, raw, await admit_body(kind, raw), record)
            if call.key is None:
                return await self._run(call, request)
            return await self._join_or_run(call, call.key, request)
        except (ClientDisconnect, ClientGone):
            record.status = "cancelled"
            return Response(status_code=CLIENT_GONE_STATUS)

    def _call(self, kind: BodyKind, raw: bytes, admitted: Admitted, record: CallRecord) -> Call:
        """Raises ApiError: 400 for wrong options or where no pool is able, 404 for an unknown model."""
        record.model = admitted.model
        options = read_options(record.headers, admitted.metadata)
        if isinstance(options, Refusal):
            raise refused(options)
        tenant = read_tenant(record.headers, trusted=self._ports.knobs.trust_tenant_header)
        if isinstance(tenant, Refusal):
            raise refused(tenant)
        key = _idempotency_key(kind, raw, record.headers)
        record.stage_done("auth")
        fleet = self._ports.fleet.now
        pool = pool_for(kind, admitted, options, fleet, self._ports.dispatcher.fleet_load.pools())
        record.pool, record.model = pool.name, pool.model
        task_id = (
            self._mint() if key is None else mint_for_partition(self._mint, self._partition, fleet.partitions)
        )
        record.task_id = task_id
        default_ms = int(fleet.deadlines_s[options.priority] * 1000)
        return Call(
            record=record,
            kind=kind,
            raw=raw,
            admitted=admitted,
            options=options,
            pool=pool,
            task_id=task_id,
            deadline_ms=record.arrived_ms + (options.deadline_ms or default_ms),
            result_partition=self._partition,
            reply_partition=self._partition if admitted.stream else None,
            streaming=admitted.stream,
            grace_s=self._ports.knobs.grace_s,
            key=key,
            tenant=tenant,
        )

    async def _join_or_run(self, call: Call, key: IdempotencyKey, request: Request) -> Response:
        async def answer(replay: StoredOutcome | None) -> Response:
            return await self._run(call, request) if replay is None else _replayed(call, replay)

        settling = self._keyed.settle(call, key, request.receive)
        if not call.streaming:
            return await answer(await settling)
        return await joined_stream(settling, answer, self._ports.knobs.ping_s, call.record)

    async def _run(self, call: Call, request: Request) -> Response:
        try:
            return await self._served(call, request)
        except ApiError as error:
            response = self._floor.response(call, error)
            if response is None:
                raise
            return response

    async def _served(self, call: Call, request: Request) -> Response:
        dispatcher = self._ports.dispatcher
        # Where nothing is sent, nothing is left behind that has to be closed.
        if time.time() * 1000 >= call.deadline_ms:  # the body took that long, or it is a millisecond
            await self._free_key(call)
            raise deadline_passed()
        if dispatcher.bus_is_away():
            await self._free_key(call)
            raise unavailable("The message bus does not answer.", "queue_unavailable")
        waiting = Waiting(call, dispatcher.lane_for(call), self._ports.inbox, dispatcher, request.receive)
        response: Response | None = None
        try:
            await self._send(waiting)
            if call.streaming:
                response = await self._stream(waiting)
                return response
            return await self._whole(waiting)
        finally:
            if response is None:
                waiting.release()  # else the streamed answer does, when it ends

    async def _send(self, waiting: Waiting) -> None:
        call = waiting.call
        try:
            await waiting.send()
        except NotAccepted:
            if call.key is None:
                waiting.disown()
            else:
                self._keyed.close(call)
            raise unavailable("The request could not be queued in time.", "queue_unavailable") from None
        except ApiError:
            await self._free_key(call)
            raise
        if call.key is not None:
            self._ports.dispatcher.background.spawn(self._keyed.accepted(call, call.key))
        call.record.stage_done("route")

    async def _whole(self, waiting: Waiting) -> Response:
        outcome = await await_outcome(waiting)
        if not isinstance(outcome, TaskSucceeded):
            await self._free_key(waiting.call)
            raise outcome_error(outcome, waiting)
        response = await whole_answer(waiting, outcome, self._ports.blobs)
        self._floor.keep(waiting.call, outcome)
        return response

    async def _stream(self, waiting: Waiting) -> Response:
        async def on_failure() -> None:
            await self._free_key(waiting.call)

        return await begin_stream(waiting, self._ports.blobs, self._ports.knobs, self._floor, on_failure)

    async def _free_key(self, call: Call) -> None:
        if call.key is not None:
            await self._keyed.free(call, call.key)

    def _mint(self) -> str:
        return str(uuid_utils.uuid7())


def _idempotency_key(kind: BodyKind, raw: bytes, headers: Mapping[str, str]) -> IdempotencyKey | None:
    key = headers.get("idempotency-key")
    if key is None:
        return None
    if not (1 <= len(key) <= _MOST_KEY_CHARACTERS and key.isascii() and key.isprintable()):
        raise refused(expected("Idempotency-Key", f"1 to {_MOST_KEY_CHARACTERS} printable ASCII characters"))
    return IdempotencyKey(key, hashlib.sha256(kind.encode() + b"\n" + raw).hexdigest())


def _replayed(call: Call, outcome: StoredOutcome) -> Response:
    """The kept answer, whole or as a stream rebuilt from it. Its tokens were counted when it was made."""
    call.record.status, call.record.reason = "ok", "replayed"
    call.record.answered_by(outcome.pool, outcome.model, None)
    body, headers = outcome.answer or b"", {"x-chimera-pool": outcome.pool}
    if not call.admitted.stream:
        return Response(body, headers=headers, media_type="application/json")
    answer, sent = orjson.loads(body), Sent()
    events = remaining_events(answer, sent)
    if call.admitted.include_usage and answer.get("usage"):
        events.append(usage_event(answer, answer["usage"], sent))
    return replayed_stream(events, headers)
