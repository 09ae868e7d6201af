"""The OpenTelemetry SDK and its exporters: imported only where spans are exported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter


def export_spans(service: str, exporter: str) -> Callable[[], None]:
    """Sets the process's tracer provider; returns what flushes and stops it."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _exporter(name: str) -> SpanExporter:
    if name == "otlp":
        return OTLPSpanExporter()
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    raise ValueError(f"OTEL_TRACES_EXPORTER: {name!r}, expected otlp, console or none")
