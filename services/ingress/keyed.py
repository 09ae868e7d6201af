"""Calls with an Idempotency-Key: run once, joined or replayed by everybody else.

Only a success is replayed; any other end frees the key, and whoever still wants an answer runs the call anew.
A key's task_id is minted so that its hash names the partition of `results` where its first caller reads: who
takes the call over sends it to the same log, so that one log decides whatever dies in between.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog
from starlette.types import Receive

from services.core.placement import stable_partition
from services.ingress.call import Call, IdempotencyKey
from services.ingress.dispatch import Dispatcher, NotAccepted
from services.ingress.errors import ApiError, deadline_passed, unavailable
from services.ingress.inbox import Listener
from services.ingress.settings import IngressKnobs
from services.ingress.waiting import watch_client
from services.ingress.whole import ClientGone
from services.ports import IdempotencyStore, KeyRow, StoredOutcome, StoreError

_log = structlog.get_logger("chimera.ingress")


class KeyedCalls:
    """What the ingress does with the `idempotency` rows."""

    def __init__(
        self, store: IdempotencyStore, dispatcher: Dispatcher, partitions: int, knobs: IngressKnobs
    ) -> None:
        self._store = store
        self._knobs = knobs
        self._dispatcher = dispatcher
        self._partitions = partitions

    async def settle(self, call: Call, key: IdempotencyKey, receive: Receive) -> StoredOutcome | None:
        """The success to replay, or None: the key is this call's and it must run.

        Raises ApiError: 422 for another body, 503 without the database, 504; ClientGone.
        """
        listener = Listener(streaming=False)
        watch = asyncio.create_task(watch_client(receive, listener))
        try:
            return await self._settle(call, key, listener)
        except StoreError:
            raise unavailable(
                "Calls with an Idempotency-Key need the database, which does not answer.",
                "database_unavailable",
            ) from None
        finally:
            watch.cancel()

    async def accepted(self, call: Call, key: IdempotencyKey) -> None:
        """Notes that the broker has the task; without the note others wait 2 s and send it again."""
        try:
            await self._store.mark_accepted(call.tenant, key.key, call.task_id)
        except StoreError as fault:
            _log.warning("key not marked accepted", task_id=call.task_id, error=str(fault))

    async def free(self, call: Call, key: IdempotencyKey) -> None:
        """After an end that is no success."""
        await self._free(call.tenant, key.key, call.task_id)

    def close(self, call: Call) -> None:
        """For a task that the broker did not acknowledge, in the background. The key stands until the rows
        say how the task ended: the broker may have it all the same, and it may succeed before its close."""
        self._dispatcher.closes.soon(call.unwanted(), "cancelled")

    async def _free(self, tenant: str, key: str, task_id: str) -> None:
        try:
            await self._store.free_key(tenant, key, task_id)
        except StoreError as fault:  # whoever comes next with the key finds the outcome and frees it
            _log.warning("key not freed", task_id=task_id, error=str(fault))

    async def _settle(self, call: Call, key: IdempotencyKey, listener: Listener) -> StoredOutcome | None:
        row = KeyRow(call.task_id, key.body_sha256, call.deadline_ms, False, call.record.arrived_ms)
        taken_over: str | None = None
        while True:
            standing = await self._store.claim_key(call.tenant, key.key, row)
            if standing.task_id == call.task_id:
                return None
            outcome = await self._store.outcome(standing.task_id)
            replayable = outcome is not None and outcome.state == "succeeded" and outcome.answer is not None
            if not replayable and (outcome is not None or self._is_lost(standing)):
                await self._store.free_key(call.tenant, key.key, standing.task_id)
                continue
            if standing.body_sha256 != key.body_sha256:
                raise _other_body()
            if replayable:
                return outcome
            if not standing.accepted and taken_over != standing.task_id and self._is_overdue(standing):
                await self._take_over(call, key, standing)
                taken_over = standing.task_id
            await _pause(call, listener, self._knobs.key_poll_s)

    def _is_lost(self, standing: KeyRow) -> bool:
        """Past its deadline and everything that may still be told of it."""
        silent_s = self._knobs.grace_s + self._knobs.rows_lag_s
        return time.time() > standing.deadline_ms / 1000 + silent_s

    def _is_overdue(self, standing: KeyRow) -> bool:
        return time.time() > standing.created_ms / 1000 + self._knobs.key_takeover_s

    async def _take_over(self, call: Call, key: IdempotencyKey, standing: KeyRow) -> None:
        """Sends this call's body as the standing row's task; its outcome is then read from the rows."""
        same = replace(
            call,
            task_id=standing.task_id,
            deadline_ms=standing.deadline_ms,
            result_partition=stable_partition(standing.task_id, self._partitions),
            reply_partition=None,
            streaming=False,
        )
        body = await self._dispatcher.payload(same.raw)
        try:
            await self._dispatcher.send(same, body, self._dispatcher.lane_for(same))
        except NotAccepted:
            raise unavailable("The request could not be queued in time.", "queue_unavailable") from None
        await self._store.mark_accepted(call.tenant, key.key, standing.task_id)


async def _pause(call: Call, listener: Listener, poll_s: float) -> None:
    if asyncio.get_running_loop().time() >= call.gives_up_at():
        raise deadline_passed()
    await listener.wait(asyncio.get_running_loop().time() + poll_s)
    if listener.hung_up:
        call.record.status = "cancelled"
        raise ClientGone


def _other_body() -> ApiError:
    return ApiError(
        422,
        "This Idempotency-Key was used with another request body.",
        param="Idempotency-Key",
        code="idempotency_key_reused",
    )
