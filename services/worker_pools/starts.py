"""From a queued task to a running try: record decoded, body fetched, attempt minted and announced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from schemas.codec import SchemaError, decode_as
from schemas.failures import FailureKind
from schemas.messages import Failure, RunTask, Try
from services.core.field_checks import Refusal
from services.core.fleet import Pool
from services.core.outgoing import Outgoing, outgoing
from services.ports import BlobStore, Clock
from services.worker_pools.held import Held
from services.worker_pools.reports import Reports

log = structlog.get_logger(__name__)
_FETCH_AGAIN_S = 0.5
_SLOW_LOG_S = 0.05  # what the ledger promises: older tries have their row


@dataclass(frozen=True, slots=True)
class Refused:
    """The task cannot be tried. `dead`: its original bytes go to `tasks.dead` for this reason."""

    failure: Failure
    dead: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    task: RunTask
    body: dict[str, Any]
    sent: Outgoing


class Starts:
    def __init__(
        self, pool: Pool, reports: Reports, blobs: BlobStore, clock: Clock, new_attempt: Callable[[], str]
    ) -> None:
        self._pool = pool
        self._reports = reports
        self._blobs = blobs
        self._clock = clock
        self._new_attempt = new_attempt

    async def prepare(self, held: Held) -> Ready | Refused:
        """Decodes the record and fetches the body that it claims."""
        try:
            task = decode_as(RunTask, held.lane_value)
            if task.task_id != held.task_id:
                raise SchemaError("RunTask.task_id: not the record's key")
        except SchemaError as fault:
            return Refused(Failure(kind=FailureKind.UNDECODABLE, message=str(fault)), dead=str(fault))
        held.tenant = task.tenant
        body = await self._body(task)
        if isinstance(body, Refused):
            return body
        sent = outgoing(task, body, self._pool)
        if isinstance(sent, Refusal):
            kind = FailureKind.NO_POOL if sent.code == "no_pool" else FailureKind.BAD_REQUEST
            failure = Failure(kind=kind, message=sent.message, code=sent.code, param=sent.param)
            return Refused(failure)
        return Ready(task, body, sent)

    def mint(self, held: Held) -> Try:
        """Names the try that begins now."""
        run = Try(
            attempt=self._new_attempt(),
            worker=self._reports.worker,
            pool=self._pool.name,
            model=self._pool.model,
            model_version=self._pool.version,
            started_ms=self._reports.now_ms(),
        )
        held.attempt = run.attempt
        return run

    async def announce_first(self, held: Held, run: Try) -> bool:
        """Whether the try had to be announced before it starts, and was.

        With a redelivered one earlier attempts are lost; and while the log is slow to hear, a try that starts
        first would die unheard.
        """
        if not held.redelivered and self._reports.unheard_s() < _SLOW_LOG_S:
            return False
        await self._reports.announced(held, run, redelivered=held.redelivered, runs=False)
        held.redelivered = False  # this worker's own later tries are no redeliveries
        return True

    async def _body(self, task: RunTask) -> dict[str, Any] | Refused:
        body = task.body.inline
        claim = task.body.claim
        if claim is not None:
            try:
                body = orjson.loads(await self._fetched(claim.key, claim.sha256))
            except (KeyError, ValueError) as fault:
                log.error("claimed body lost", task_id=task.task_id, fault=type(fault).__name__)
                message = "the request's body is gone from the store or is not what was written"
                return Refused(Failure(kind=FailureKind.CLAIM_LOST, message=message))
        if not isinstance(body, dict):
            message = "body: expected a JSON object"
            return Refused(Failure(kind=FailureKind.BAD_REQUEST, message=message, param="body"))
        return body

    async def _fetched(self, key: str, sha256: str) -> bytes:
        while True:
            try:
                return await self._blobs.get(key, sha256)
            except OSError as fault:  # the store is away; the deadline bounds the wait
                log.warning("blob not read, tried again", fault=str(fault))
                await asyncio.sleep(_FETCH_AGAIN_S)
