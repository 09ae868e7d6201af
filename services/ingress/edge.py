"""The outermost layer, as plain ASGI: request ids, log line, metrics, and no error without its shape."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
import uuid_utils
from opentelemetry import trace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingress.call_record import SCOPE_KEY, CallRecord
from services.ingress.errors import ApiError, internal_error
from services.ingress.metrics import IngressMetrics
from services.ingress.tracing import served_request

_log = structlog.get_logger("chimera.ingress")
_SANE_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
_QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


Handler = Callable[[Request], Awaitable[Response]]


class Edge:
    """Wraps the application: what it raises becomes an answer, what it served is counted and logged.

    `calls`, by path, are the POSTs that everything is here for: they skip the application's layers, which
    cost as much as the handlers themselves. All other methods and paths are the application's.
    """

    def __init__(self, app: ASGIApp, metrics: IngressMetrics, calls: Mapping[str, Handler]) -> None:
        self._app = app
        self._calls = calls
        self._metrics = metrics
        self._tracer = trace.get_tracer("chimera.ingress")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in scope["headers"]}
        told = headers.get("x-request-id", "")
        request_id = told if _SANE_ID.fullmatch(told) else str(uuid_utils.uuid7())
        span = served_request(self._tracer, scope["method"], scope["path"], headers)
        record = CallRecord(request_id, headers, span)
        scope[SCOPE_KEY] = record
        answer = _Answer(send, request_id)
        try:
            await self._serve(scope, receive, answer, record)
        finally:
            self._ended(scope, record, answer.status)

    async def _serve(self, scope: Scope, receive: Receive, answer: _Answer, record: CallRecord) -> None:
        call = self._calls.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            if call is None:
                await self._app(scope, receive, answer)
            else:
                response = await _called(call, Request(scope, receive), record)
                await response(scope, receive, answer)
        except Exception:  # noqa: BLE001 - the last line of defence: the shape for the caller, the rest logged
            _log.exception("request failed", request_id=record.request_id, task_id=record.task_id)
            record.status, record.reason = "backend_error", "internal_error"
            if answer.status == 0:
                await internal_error().response()(scope, receive, answer)

    def _ended(self, scope: Scope, record: CallRecord, status: int) -> None:
        if record.status is None:
            record.status = _status_of(status)
        record.finish_stages()
        self._metrics.ended(record)
        _log_line(scope, record, status)
        if record.decided is not None:
            record.span.replied(record.decided)
        record.span.end(
            {
                "http.response.status_code": status or None,
                "chimera.request_id": record.request_id,
                "chimera.task_id": record.task_id,
                "chimera.attempt": record.attempt,
                "chimera.pool": record.pool,
            },
        )


async def _called(call: Handler, request: Request, record: CallRecord) -> Response:
    try:
        return await call(request)
    except ApiError as fault:
        return known_error(fault, record)


def known_error(fault: ApiError, record: CallRecord) -> Response:
    """The response that a fault of a request means, noted in its record."""
    record.status, record.reason = fault.counted, record.reason or fault.code
    return fault.response({"x-chimera-pool": record.pool} if record.pool else None)


class _Answer:
    """`send`, with the request id in the response's headers; remembers the status (0: none yet)."""

    __slots__ = ("_request_id", "_send", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id)]
        await self._send(message)


def _status_of(http_status: int) -> Any:
    """Where nobody said it: a call that was cut off has no status at all."""
    if http_status == 0:
        return "cancelled"
    if http_status < 400:
        return "ok"
    return "client_error" if http_status < 500 else "backend_error"


def _log_line(scope: Scope, record: CallRecord, status: int) -> None:
    path = scope["path"]
    fields: Mapping[str, Any] = {
        "request_id": record.request_id,
        "method": scope["method"],
        "path": path[:256],
        "http_status": status,
        "status": record.status,
        "seconds": round(record.elapsed_s(), 6),
    }
    if record.task_type is None:
        (_log.debug if path in _QUIET_PATHS else _log.info)("request", **fields)
        return
    _log.info(
        "request",
        **fields,
        task_id=record.task_id,
        attempt=record.attempt,
        pool=record.pool,
        reason=record.reason,
    )
