"""The OpenTelemetry SDK and its exporters: imported only where spans are exported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Link, Status

Scrub = Callable[[Any], Any]


def export_spans(service: str, exporter: str, scrub: Scrub) -> Callable[[], None]:
    """Sets the process's tracer provider; returns what flushes and stops it. `scrub` takes out secrets."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(RedactingExporter(_exporter(exporter), scrub)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        return OTLPSpanExporter()
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    raise ValueError(f"OTEL_TRACES_EXPORTER: {name!r}, expected otlp, console or none")


class RedactingExporter(SpanExporter):
    """Scrubs all text of a span (name, attributes, events with their exceptions, links, status) before
    another exporter gets it: in the exporter's own thread, never on the way of a request."""

    def __init__(self, exporter: SpanExporter, scrub: Scrub) -> None:
        self._exporter, self._scrub = exporter, scrub

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([self._scrubbed(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _scrubbed(self, span: ReadableSpan) -> ReadableSpan:
        scrub = self._scrub
        status = span.status
        return ReadableSpan(
            name=scrub(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=scrub(dict(span.attributes or {})),
            events=[Event(scrub(e.name), scrub(dict(e.attributes or {})), e.timestamp) for e in span.events],
            links=[Link(link.context, scrub(dict(link.attributes or {}))) for link in span.links],
            kind=span.kind,
            status=Status(status.status_code, scrub(status.description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
