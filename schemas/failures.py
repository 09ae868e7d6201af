"""Failure kinds: what went wrong with a try or a task, and what follows from it.

Law: a kind says whether the same work may be tried again, whether it speaks against the backend (and so may
open its breaker), whether the provider charged for it, and which HTTP status the caller sees. Code asks the
table; it never compares messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """Why a try or a task failed."""

    UNREACHABLE = "unreachable"  # no connection: refused, no route, TLS, connect time-out
    RESET = "reset"  # the connection broke before any content
    INTERRUPTED = "interrupted"  # the stream broke after content
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 - a time-out, no password
    IDLE_TIMEOUT = "idle_timeout"  # silence after the first content
    TOO_SLOW = "too_slow"  # below the minimum rate of tokens
    TOTAL_TIMEOUT = "total_timeout"
    RATE_LIMITED = "rate_limited"  # 429
    OVERLOADED = "overloaded"  # 503, 529
    SERVER_ERROR = "server_error"  # any other 5xx
    BAD_ANSWER = "bad_answer"  # 200 with something that is not an answer: empty, failed, not JSON, HTML
    KEY_REFUSED = "key_refused"  # 401, 403: our key, never the caller's fault
    NOT_FOUND = "not_found"  # 404: our configuration names a model that the backend has not
    BAD_REQUEST = "bad_request"  # 400, 422: the caller's body
    TOOL_ERROR = "tool_error"  # the tool ran and says that it failed: its answer, which stands
    TOO_LONG = "too_long"  # the caller's body does not fit the context
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    NO_POOL = "no_pool"  # no pool can do what is asked
    EVICTED = "evicted"  # cancelled by us, so that more urgent work could start
    NO_SLOT = "no_slot"  # none free in time
    UNDECODABLE = "undecodable"  # bytes on a topic that are not what they say
    POISON = "poison"  # its tries kept dying
    CLAIM_LOST = "claim_lost"  # the payload behind a claim check is gone or not what was written
    INTERNAL = "internal"  # ours


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """What follows from a kind. `http_status` is what the caller of an unstreamed request gets."""

    retryable: bool
    counts_against_backend: bool
    billed: bool
    http_status: int
    error_type: str


def _backend(
    *, retryable: bool = True, counts: bool = True, billed: bool = False, status: int = 502
) -> FailureFacts:
    return FailureFacts(retryable, counts, billed, status, "backend_error")


def _caller(status: int) -> FailureFacts:
    return FailureFacts(False, False, False, status, "invalid_request_error")


FAILURE_FACTS: dict[FailureKind, FailureFacts] = {
    FailureKind.UNREACHABLE: _backend(),
    FailureKind.RESET: _backend(),
    FailureKind.INTERRUPTED: _backend(billed=True),
    FailureKind.FIRST_TOKEN_TIMEOUT: _backend(billed=True),
    FailureKind.IDLE_TIMEOUT: _backend(billed=True),
    FailureKind.TOO_SLOW: _backend(billed=True),
    FailureKind.TOTAL_TIMEOUT: _backend(billed=True),
    FailureKind.RATE_LIMITED: _backend(counts=False, status=429),
    FailureKind.OVERLOADED: _backend(counts=False, status=503),
    FailureKind.SERVER_ERROR: _backend(),
    FailureKind.BAD_ANSWER: _backend(billed=True),
    FailureKind.KEY_REFUSED: _backend(retryable=False),
    FailureKind.NOT_FOUND: _backend(retryable=False),
    FailureKind.BAD_REQUEST: _caller(400),
    FailureKind.TOOL_ERROR: FailureFacts(False, False, True, 422, "tool_error"),
    FailureKind.TOO_LONG: _caller(400),
    FailureKind.DEADLINE: FailureFacts(False, False, True, 504, "deadline_exceeded"),
    FailureKind.CANCELLED: FailureFacts(False, False, True, 499, "cancelled"),
    FailureKind.NO_POOL: _caller(400),
    FailureKind.EVICTED: FailureFacts(True, False, False, 503, "overloaded"),
    FailureKind.NO_SLOT: FailureFacts(True, False, False, 503, "overloaded"),
    FailureKind.UNDECODABLE: _caller(400),
    FailureKind.POISON: FailureFacts(False, False, True, 502, "backend_error"),
    FailureKind.CLAIM_LOST: FailureFacts(False, False, False, 500, "internal_error"),
    FailureKind.INTERNAL: FailureFacts(True, False, False, 500, "internal_error"),
}
