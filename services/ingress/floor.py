"""The degraded answer of a request that allows one (`x-chimera-degraded: allow`), when all else failed.

Only what is not the caller's fault is answered so, and never a request that did not ask for it. The task's
outcome on the log stays what it was; the answer says what it is, and is counted as degraded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import orjson
import structlog
from starlette.responses import Response

from schemas.messages import TaskSucceeded
from services.core.degraded import Degraded, KeptAnswers, canned_answer, marked, question_key
from services.core.stream_rebuild import Sent, remaining_events, usage_event
from services.ingress.call import Call
from services.ingress.errors import ApiError
from services.ingress.settings import IngressKnobs
from services.ingress.sse_form import replayed_stream

_log = structlog.get_logger("chimera.ingress")
HEADER = "x-chimera-degraded"
_NOT_OURS = frozenset({"client_error", "cancelled"})
_REPLICA = frozenset({"starting", "shutting_down"})  # another replica answers
_MOST_BODY_BYTES = 64 * 1024  # a larger question is not asked twice in the same words

Event = dict[str, Any]


class Floor:
    """Answers of before are kept in memory, of requests that allow degraded answers alone."""

    def __init__(self, knobs: IngressKnobs, now_s: Callable[[], float] = time.monotonic) -> None:
        self._kept = KeptAnswers(knobs.floor_entries, knobs.floor_bytes, knobs.floor_ttl_s)
        self._now_s = now_s

    def keep(self, call: Call, outcome: TaskSucceeded) -> None:
        """A success, for the time when the same question fails. A claimed answer is too large to keep."""
        if call.options.degraded != "allow" or outcome.answer.claim is not None:
            return
        if len(call.raw) <= _MOST_BODY_BYTES:
            answer = orjson.dumps(outcome.answer.inline)
            self._kept.put(_key(call, orjson.loads(call.raw)), answer, outcome.run.pool, self._now_s())

    def response(self, call: Call, error: ApiError) -> Response | None:
        """What is answered instead of the error; None where the error stands."""
        found = self._found(call, error)
        if found is None:
            return None
        answer, how, pool = found
        headers = {HEADER: how, "x-chimera-pool": pool}
        if call.admitted.stream:
            return replayed_stream(_events(call, answer), headers)
        return Response(orjson.dumps(answer), headers=headers, media_type="application/json")

    def events(self, call: Call, error: ApiError) -> list[Event] | None:
        """The same for a stream that has begun and has said nothing yet."""
        found = self._found(call, error)
        return None if found is None else _events(call, found[0])

    def _found(self, call: Call, error: ApiError) -> tuple[Event, Degraded, str] | None:
        if call.options.degraded != "allow" or error.counted in _NOT_OURS or error.code in _REPLICA:
            return None
        body = orjson.loads(call.raw)
        found = self._cached(call, body) or _canned(call, body)
        if found is None:
            return None
        answer, how, pool = found
        call.record.status, call.record.reason, call.record.pool = "degraded", error.code, pool
        _log.warning("degraded answer", task_id=call.task_id, how=how, reason=error.code)
        return marked(answer, how), how, pool

    def _cached(self, call: Call, body: Event) -> tuple[Event, Degraded, str] | None:
        kept = None
        if len(call.raw) <= _MOST_BODY_BYTES:
            kept = self._kept.get(_key(call, body), self._now_s())
        return None if kept is None else (orjson.loads(kept.answer), "cached", kept.pool)


def _canned(call: Call, body: Event) -> tuple[Event, Degraded, str] | None:
    pool = call.pool
    if pool.floor is None:
        return None
    created_s = call.record.arrived_ms // 1000
    answer = canned_answer(pool.floor, call.kind, call.task_id, pool.model, created_s, body)
    return None if answer is None else (answer, "canned", pool.name)


def _key(call: Call, body: Event) -> bytes:
    return question_key(call.tenant, call.kind, call.pool.name, body)


def _events(call: Call, answer: Event) -> list[Event]:
    sent = Sent()
    events = remaining_events(answer, sent)
    if call.admitted.include_usage and answer.get("usage"):
        events.append(usage_event(answer, answer["usage"], sent))
    return events
