"""What a record of `submissions` is: a task to route, one to refuse with a reason, or bytes to put aside."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from schemas.codec import SchemaError, Unknown, decode
from schemas.failures import FailureKind
from schemas.headers import to_text
from schemas.messages import Failure, SubmitTask
from schemas.payload import REQUEST_LIMIT_BYTES
from schemas.topics import LONGEST_DEADLINE_MS
from services.core.admission import Admitted, BodyKind, admit
from services.core.call_options import CallOptions
from services.core.field_checks import Refusal, expected
from services.core.fleet import Fleet, Pool
from services.core.routing import Load
from services.core.tool_task import admit_tool
from services.ingress.errors import ApiError, deadline_passed, refused
from services.ingress.pool_choice import pool_for
from services.ports import BlobStore, InRecord

_OFF_LOOP_BYTES = 64 * 1024
_MOST_ID_CHARACTERS = 128
_KINDS = {
    "deadline": FailureKind.DEADLINE,
    "claim_lost": FailureKind.CLAIM_LOST,
    "no_pool": FailureKind.NO_POOL,
    "model_not_found": FailureKind.NO_POOL,
}


@dataclass(frozen=True, slots=True)
class Odd:
    """`dead`: bytes that are not what they say; `kept`: a type or major that only a newer version knows.

    `task_id`: of a SubmitTask that names it by its key, so that its producer can be told.
    """

    fate: Literal["dead", "kept"]
    reason: str
    task_id: str | None = None
    kind: FailureKind = FailureKind.UNDECODABLE


@dataclass(frozen=True, slots=True)
class Submission:
    """A SubmitTask as it was read, the same for every redelivery. `told_deadline`: the header's own text."""

    task: SubmitTask
    request_id: str
    arrived_ms: int
    told_deadline: str | None
    default_deadline_ms: int
    traceparent: str | None

    def deadline_ms(self) -> int:
        """Absolute. Raises ApiError for a header that is none."""
        told, latest_ms = self.told_deadline, self.arrived_ms + LONGEST_DEADLINE_MS
        if told is None:
            return self.default_deadline_ms
        if told.isascii() and told.isdigit() and len(told) <= 15 and int(told) <= latest_ms:
            return int(told)
        raise refused(expected("deadline", "milliseconds since the epoch, at most 7 days ahead"))


@dataclass(frozen=True, slots=True)
class Routed:
    """An admitted submission. `raw` is its body's JSON, None where the body is claimed."""

    pool: Pool
    admitted: Admitted
    deadline_ms: int
    raw: bytes | None


async def read_submission(record: InRecord, fleet: Fleet, now_ms: int) -> Submission | Odd:
    """A large record is read beside the loop."""
    if len(record.value or b"") > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(_read, record, fleet, now_ms)
    return _read(record, fleet, now_ms)


def _read(record: InRecord, fleet: Fleet, now_ms: int) -> Submission | Odd:
    text = to_text(record.headers)
    try:
        message = decode(text, record.value)
    except SchemaError as fault:
        return Odd("dead", str(fault), _named(record) if text.get("type") == SubmitTask.__name__ else None)
    if isinstance(message, Unknown):
        return Odd("kept", f"header type: {message.type[:64]!r} version {message.major[:16]!r} is not known")
    if not isinstance(message, SubmitTask):
        return Odd("dead", f"header type: {type(message).__name__}, expected SubmitTask")
    arrived_ms = min(record.timestamp_ms, now_ms)  # a producer's clock may be ahead of ours
    return Submission(
        task=message,
        request_id=text.get("request_id", "")[:_MOST_ID_CHARACTERS] or message.task_id,
        arrived_ms=arrived_ms,
        told_deadline=text.get("deadline"),
        default_deadline_ms=arrived_ms + int(fleet.deadlines_s[message.priority] * 1000),
        traceparent=text.get("traceparent"),
    )


def _named(record: InRecord) -> str | None:
    try:
        name = (record.key or b"").decode()
    except UnicodeDecodeError:
        return None
    return name if 1 <= len(name) <= _MOST_ID_CHARACTERS else None


async def route_submission(
    found: Submission, fleet: Fleet, load: Load, blobs: BlobStore, now_ms: int
) -> Routed | Failure:
    """Admits and routes it as an HTTP call is. Raises OSError where its claim cannot be read just now."""
    try:
        deadline_ms = found.deadline_ms()
        if now_ms >= deadline_ms:
            raise deadline_passed()
        body = await _body(found.task, blobs)
        pool, admitted = _admitted(found.task, found.task.kind, body, fleet, load)
    except ApiError as error:
        kind = _KINDS.get(error.code or "", FailureKind.BAD_REQUEST)
        return Failure(kind=kind, message=error.message, code=error.code, param=error.param)
    raw = orjson.dumps(body) if found.task.body.claim is None else None  # admitted: what can be written
    return Routed(pool, admitted, deadline_ms, raw)


async def _body(task: SubmitTask, blobs: BlobStore) -> Any:
    """The body, parsed. Raises ApiError, OSError."""
    claim = task.body.claim
    if claim is None:
        return task.body.inline
    if claim.size > REQUEST_LIMIT_BYTES:
        raise refused(expected("body.claim.size", f"at most {REQUEST_LIMIT_BYTES} bytes"))
    try:
        return await asyncio.to_thread(orjson.loads, await blobs.get(claim.key, claim.sha256))
    except (KeyError, ValueError):
        raise ApiError(
            400, "The body behind the claim is gone, or is not the JSON that was written.", code="claim_lost"
        ) from None


def _admitted(
    task: SubmitTask, kind: BodyKind | Literal["tool"], body: Any, fleet: Fleet, load: Load
) -> tuple[Pool, Admitted]:
    """Raises ApiError."""
    verdict = admit_tool(body) if kind == "tool" else admit(kind, body)
    if isinstance(verdict, Refusal):
        raise refused(verdict)
    options = CallOptions(
        priority=task.priority,
        objective=task.objective,
        session_id=task.session_id,
        required_capabilities=task.required_capabilities,
        affinity=task.affinity,
        data_policy=task.data_policy,
    )
    return pool_for(kind, verdict, options, fleet, load), verdict
