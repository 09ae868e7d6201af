"""Spans of the ingress, by the OTel API alone: without an SDK they only carry a caller's traceparent on.

Names and attributes are those of OpenTelemetry's messaging conventions. A consumer's span is a child of its
sender's, so that one request is one trace, and links to it as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.ports import InRecord

_PROPAGATOR = TraceContextTextMapPropagator()
_NAMED_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/healthz", "/readyz", "/metrics"}
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record that was read, its sender's trace, and when (ns since the epoch)."""

    topic: str
    partition: int
    offset: int
    traceparent: str | None
    at_ns: int = field(default_factory=time.time_ns)


class WorkSpan:
    """The span of one request or of one submission, and those below it."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: Span, parent: Context) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span, parent)

    def sending(self, topic: str, partition: int, conversation_id: str) -> tuple[Span, str | None]:
        """A span for a send, to be ended by the caller, and the traceparent that goes with it."""
        span = self._tracer.start_span(f"send {topic}", self._context, SpanKind.PRODUCER)
        if not span.get_span_context().is_valid:
            return span, None
        if span.is_recording():
            span.set_attributes(_messaging("send", topic, partition))
            span.set_attribute("messaging.message.conversation_id", conversation_id)
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, self._context))
        return span, carrier.get("traceparent")

    def replied(self, outcome: Arrival) -> None:
        """The reply: from the outcome's arrival to now, when the answer is written."""
        if not self._span.is_recording():
            return
        span = self._tracer.start_span(
            f"process {outcome.topic}",
            self._context,
            SpanKind.CONSUMER,
            _messaging("process", outcome.topic, outcome.partition)
            | {"messaging.kafka.offset": outcome.offset},
            _links(outcome.traceparent),
            start_time=outcome.at_ns,
        )
        span.end()

    def end(self, attributes: Mapping[str, str | int | None]) -> None:
        if self._span.is_recording():
            for name, value in attributes.items():
                if value is not None:
                    self._span.set_attribute(name, value)
        self._span.end()


def served_request(tracer: trace.Tracer, method: str, path: str, headers: Mapping[str, str]) -> WorkSpan:
    """The span of an HTTP request, in its caller's trace. A path that is not ours stays out of its name."""
    parent = _PROPAGATOR.extract(headers) if "traceparent" in headers else Context()
    attributes = {"http.request.method": method}
    if path in _NAMED_PATHS:
        attributes["http.route"] = path
    name = " ".join(attributes.values())
    return WorkSpan(tracer, tracer.start_span(name, parent, SpanKind.SERVER, attributes), parent)


def taken_submission(tracer: trace.Tracer, record: InRecord, traceparent: str | None, group: str) -> WorkSpan:
    """The span of a submission's processing, in its producer's trace."""
    parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else Context()
    attributes = _messaging("process", record.topic, record.partition) | {
        "messaging.kafka.offset": record.offset,
        "messaging.consumer.group.name": group,
    }
    span = tracer.start_span(
        f"process {record.topic}", parent, SpanKind.CONSUMER, attributes, _links(traceparent)
    )
    return WorkSpan(tracer, span, parent)


def _messaging(operation: str, topic: str, partition: int) -> dict[str, str | int]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
    }


def _links(traceparent: str | None) -> list[Link]:
    if traceparent is None:
        return []
    sender = trace.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent})).get_span_context()
    return [Link(sender)] if sender.is_valid else []
