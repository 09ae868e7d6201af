"""Spans of a request, by the OTel API alone: without an SDK they only carry a caller's traceparent on."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


class RequestSpan:
    """The span of one HTTP request, and below it that of publishing its task."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, method: str, path: str, headers: Mapping[str, str]) -> None:
        self._tracer = tracer
        parent = _PROPAGATOR.extract(headers) if "traceparent" in headers else Context()
        self._span = tracer.start_span(f"{method} {path}", parent, SpanKind.SERVER)
        self._context = trace.set_span_in_context(self._span, parent)

    def publishing(self, topic: str) -> tuple[Span, str | None]:
        """A span for a send to `topic`, to be ended by the caller, and the traceparent that goes with it."""
        span = self._tracer.start_span(f"send {topic}", self._context, SpanKind.PRODUCER)
        if not span.get_span_context().is_valid:
            return span, None
        if span.is_recording():
            span.set_attribute("messaging.system", "kafka")
            span.set_attribute("messaging.operation.type", "send")
            span.set_attribute("messaging.destination.name", topic)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, self._context))
        return span, carrier.get("traceparent")

    def end(self, status: int, attributes: Mapping[str, str | None]) -> None:
        if self._span.is_recording():
            self._span.set_attribute("http.response.status_code", status)
            for name, value in attributes.items():
                if value:
                    self._span.set_attribute(name, value)
        self._span.end()
