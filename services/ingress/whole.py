"""Answering in one piece: wait for the outcome, write it."""

from __future__ import annotations

import asyncio

import orjson
from starlette.responses import Response

from schemas.messages import TaskClosed, TaskFailed, TaskSucceeded
from schemas.payload import Payload
from services.core.stream_binding import closed_failure
from services.ingress.errors import ApiError, deadline_passed, failed
from services.ingress.waiting import Terminal, Waiting
from services.ports import BlobStore

CLIENT_GONE_STATUS = 499


class ClientGone(Exception):  # noqa: N818 - reads as the outcome it is
    """Nobody is left to answer."""


async def await_outcome(waiting: Waiting) -> Terminal:
    """The first terminal record. Raises ApiError at the deadline or the service's end, ClientGone."""
    gives_up_at = waiting.call.gives_up_at()
    loop = asyncio.get_running_loop()
    while True:
        for message in waiting.listener.take():
            if isinstance(message, Terminal):
                return message
        if waiting.listener.hung_up:
            waiting.leave()
            raise ClientGone
        if waiting.listener.abandoned:
            raise waiting.abandon()
        if loop.time() >= gives_up_at:
            raise deadline_passed()
        await waiting.listener.wait(gives_up_at)


async def whole_answer(waiting: Waiting, outcome: Terminal, blobs: BlobStore) -> Response:
    """The response for an outcome. Raises ApiError where it is a failure."""
    if not isinstance(outcome, TaskSucceeded):
        raise outcome_error(outcome, waiting)
    body = await payload_bytes(outcome.answer, blobs)
    waiting.call.record.succeeded(outcome)
    return Response(body, headers={"x-chimera-pool": outcome.run.pool}, media_type="application/json")


def outcome_error(outcome: TaskFailed | TaskClosed, waiting: Waiting) -> ApiError:
    if isinstance(outcome, TaskClosed):
        return failed(closed_failure(outcome))
    if outcome.run is not None:
        waiting.call.record.answered_by(outcome.run.pool, outcome.run.model, outcome.run.attempt)
    waiting.call.record.usage = outcome.usage
    return failed(outcome.failure)


async def payload_bytes(payload: Payload, blobs: BlobStore) -> bytes:
    """The JSON of an answer. Raises ApiError 500 where its blob is gone or changed."""
    if payload.claim is None:
        return orjson.dumps(payload.inline)
    try:
        return await blobs.get(payload.claim.key, payload.claim.sha256)
    except (KeyError, ValueError, OSError):
        raise ApiError(
            500,
            "The answer could not be read back.",
            error_type="internal_error",
            code="claim_lost",
            headers={"x-should-retry": "false"},
            counted="backend_error",
        ) from None
