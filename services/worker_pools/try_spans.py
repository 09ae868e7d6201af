"""The spans of a try: the record's processing, child of the caller's trace, and the model call in it.

Without an SDK, or for a trace that is not sampled, nothing is built; the caller's traceparent is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from schemas.messages import Failure, RunTask, Try, Usage
from services.worker_pools.held import Held

_CARRIER = TraceContextTextMapPropagator()


class TrySpan:
    """`headers`: what carries the trace to the backend. As a context it ends its spans on every path."""

    __slots__ = ("_spans", "headers")

    def __init__(self, headers: Mapping[str, str], spans: tuple[Span, ...] = ()) -> None:
        self.headers = headers
        self._spans = spans

    def __enter__(self) -> TrySpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._failed(kind.__name__)
        for span in reversed(self._spans):
            span.end()

    def tell(self, failure: Failure | None, usage: Usage) -> None:
        """How the try ended."""
        for span in self._spans:
            span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
        if failure is not None:
            self._failed(failure.kind.value)

    def _failed(self, error_type: str) -> None:
        for span in self._spans:
            span.set_attribute("error.type", error_type)
            span.set_status(Status(StatusCode.ERROR))


class TrySpans:
    def __init__(self, provider: TracerProvider) -> None:
        self._on = not isinstance(provider, trace.ProxyTracerProvider)
        self._tracer = provider.get_tracer("chimera.worker")

    def begun(self, held: Held, task: RunTask, run: Try) -> TrySpan:
        traceparent = held.headers.traceparent
        carried = {} if traceparent is None else {"traceparent": traceparent}
        if not self._on:
            return TrySpan(carried)
        parent = self._tracer.start_span(
            f"process {held.lane}", _CARRIER.extract(carried), kind=SpanKind.CONSUMER
        )
        call = self._tracer.start_span(
            f"{task.kind} {run.model}", trace.set_span_in_context(parent), kind=SpanKind.CLIENT
        )
        if parent.is_recording():
            _describe(parent, call, held, task, run)
        carried = {}
        _CARRIER.inject(carried, trace.set_span_in_context(call))
        return TrySpan(carried, (parent, call))


def _describe(parent: Span, call: Span, held: Held, task: RunTask, run: Try) -> None:
    partition, offset = held.origin
    parent.set_attributes(
        {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": held.lane,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.offset": offset,
            "messaging.consumer.group.name": held.lane,
            "messaging.message.conversation_id": held.headers.request_id,
            "chimera.task_id": held.task_id,
            "chimera.attempt": run.attempt,
        }
    )
    call.set_attributes(
        {
            "gen_ai.operation.name": task.kind,
            "gen_ai.request.model": run.model,
            "chimera.attempt": run.attempt,
            "chimera.pool": run.pool,
        }
    )
