"""Every error of the API in the OpenAI shape, and what each failure kind means to an HTTP caller."""

from __future__ import annotations

import math
from collections.abc import Mapping

import orjson
from starlette.responses import Response

from schemas.failures import FAILURE_FACTS, FailureKind
from schemas.messages import Failure
from services.core.field_checks import Refusal
from services.ingress.call_record import RequestStatus

SLOW_READER = "slow_reader"
NEVER_REPEAT = {"x-should-retry": "false"}
_RETRY_AFTER_S = 1
_LONGEST_RETRY_AFTER_S = 3600  # a backend that asks for years means "not now"
# Their message would tell the caller about our own configuration.
_OURS = {
    FailureKind.KEY_REFUSED: "The model's backend refused this service's own credentials.",
    FailureKind.NOT_FOUND: "The model's backend does not know the model that is configured for it.",
}


class ApiError(Exception):
    """An answer that is an error; raised anywhere below the edge, written once at the edge."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        counted: RequestStatus = "client_error",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.error_type = status, message, error_type
        self.param, self.code, self.headers, self.counted = param, code, dict(headers or {}), counted

    def body(self) -> bytes:
        shape = {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": shape})

    def event(self) -> bytes:
        """The error as the last event of a stream."""
        return b"data: " + self.body() + b"\n\n"

    def response(self, more_headers: Mapping[str, str] | None = None) -> Response:
        headers = {**(more_headers or {}), **self.headers}
        return Response(self.body(), self.status, headers, media_type="application/json")


def refused(refusal: Refusal) -> ApiError:
    return ApiError(400, refusal.message, param=refusal.param, code=refusal.code)


def failed(failure: Failure) -> ApiError:
    """A task's failure. What the worker has already repeated, the client's library must not repeat again."""
    facts = FAILURE_FACTS[failure.kind]
    headers: dict[str, str] = {}
    if facts.http_status in (429, 503):
        wait_s = failure.retry_after_s if failure.retry_after_s is not None else _RETRY_AFTER_S
        headers["retry-after"] = str(min(_LONGEST_RETRY_AFTER_S, max(1, math.ceil(wait_s))))
    elif facts.http_status >= 500:
        headers |= NEVER_REPEAT
    ours = failure.kind in _OURS
    return ApiError(
        facts.http_status,
        _OURS.get(failure.kind, failure.message),
        error_type=facts.error_type,
        param=None if ours else failure.param,
        code=failure.kind.value if ours or not failure.code else failure.code,
        headers=headers,
        counted=_counted(failure.kind),
    )


def _counted(kind: FailureKind) -> RequestStatus:
    facts = FAILURE_FACTS[kind]
    if kind is FailureKind.DEADLINE:
        return "deadline"
    if kind is FailureKind.CANCELLED:
        return "cancelled"
    if facts.http_status in (429, 503):
        return "shed"
    return "client_error" if facts.http_status < 500 else "backend_error"


def unavailable(message: str, code: str) -> ApiError:
    """503 that may be repeated."""
    return ApiError(
        503,
        message,
        error_type="overloaded",
        code=code,
        headers={"retry-after": str(_RETRY_AFTER_S)},
        counted="shed",
    )


def deadline_passed() -> ApiError:
    return failed(Failure(kind=FailureKind.DEADLINE, message="The request was not answered by its deadline."))


def slow_reader() -> ApiError:
    return ApiError(
        499,
        "The stream was not read as fast as it came.",
        error_type="slow_reader",
        code=SLOW_READER,
        counted="cancelled",
    )


def internal_error() -> ApiError:
    return ApiError(
        500,
        "The server had an error while processing the request.",
        error_type="internal_error",
        code="internal_error",
        counted="backend_error",
    )
