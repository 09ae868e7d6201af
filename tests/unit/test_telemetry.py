"""R8: no secret leaves through a log line, and traces are exported only where an exporter is named."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link

from services.adapters.span_export import RedactingExporter
from services.adapters.telemetry import REDACTED, Redactor, Seldom, secrets_of, setup_tracing
from services.ingress.tracing import served_request

PROGRAM = """
import logging, structlog
from services.adapters.telemetry import setup_logging
setup_logging("test", level="debug")
log = structlog.get_logger("x")
log.info("said", key="sk-abcdef123456", nested={"list": ["Bearer xyz.abc"]}, url="postgresql://u:pass1word@h/db")
try:
    raise ValueError("sk-abcdef123456 in a fault")
except ValueError:
    log.exception("failed")
    logging.getLogger("library").exception("library failed %s", "sk-abcdef123456")
"""


def test_r8_secrets_are_scrubbed_from_every_sink() -> None:
    env = {"SOME_API_KEY": "sk-abcdef123456", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=True, text=True
    )
    lines = [orjson.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines][:2] == ["said", "failed"]
    assert len(lines) == 3
    assert all(line["service"] == "test" for line in lines)
    assert done.stdout == ""
    for secret in ("sk-abcdef123456", "xyz.abc", "pass1word"):
        assert secret not in done.stderr
    assert "ValueError" in lines[1]["exception"]


def test_short_values_and_ordinary_variables_are_no_secrets() -> None:
    environment = {
        "API_KEY": "short",
        "HOME": "/home/somebody",
        "MY_TOKEN": "t0ken-value",
        "OTHER": "named-one",
    }
    redactor = Redactor(secrets_of(environment, ["OTHER"]))
    text = "short /home/somebody t0ken-value named-one"
    assert redactor.scrub(text) == f"short /home/somebody {REDACTED} {REDACTED}"


@dataclass
class Held:
    key: str = field(repr=False)


@pytest.mark.parametrize(
    "secret", ["plain-s3cret", 'a "quoted" s3cret', "back\\slash-s3cret", "ünder-s3cret"]
)
def test_r8_a_line_is_redacted_wherever_the_secret_is(secret: str) -> None:
    redactor = Redactor([secret])
    event: dict[Any, Any] = {
        "event": f"got {secret}",
        "nested": {"list": [1, (secret,)], secret: {secret}},
        "fault": ValueError(secret),
        "proxy": MappingProxyType({"inner": secret}),
        "data": Held(secret),
        Path("key"): "of no line",
        "sent": "BEARER abc.def",
        "url": "postgresql://chimera:hidden@db/x",
        "n": 7,
    }
    line = redactor(None, "info", dict(event))
    shown = orjson.loads(line)
    assert secret not in str(shown)
    assert "abc.def" not in str(shown)
    assert "hidden" not in str(shown)
    assert shown["event"] == f"got {REDACTED}"
    assert shown["n"] == 7
    assert orjson.loads(redactor(None, "info", {"event": "plain", "tags": {"a"}, "path": Path("x")})) == {
        "event": "plain",
        "tags": ["a"],
        "path": "x",
    }


def test_a_secret_that_is_no_utf8_stops_no_service() -> None:
    redactor = Redactor(["\udcff-s3cret-value"])
    assert REDACTED in redactor(None, "info", {"event": "a \udcff-s3cret-value"}).decode()


def test_an_unknown_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ValueError, match="otlp, console or none"):
        setup_tracing("test")


def test_without_an_exporter_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    setup_tracing("test")()
    assert not logging.getLogger("opentelemetry").handlers


def test_a_request_and_its_send_are_one_trace_with_the_callers() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    request = served_request(provider.get_tracer("test"), "POST", "/v1/x", headers)
    span, traceparent = request.sending("lane", 3, "r")
    span.end()
    request.end({"http.response.status_code": 200, "chimera.task_id": "t", "chimera.attempt": None})
    sent, served = exported.get_finished_spans()
    assert sent.context is not None
    assert served.context is not None
    assert sent.parent == served.context
    assert traceparent == f"00-{trace_id}-{sent.context.span_id:016x}-01"
    assert dict(served.attributes or {}) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "chimera.task_id": "t",
    }
    provider.shutdown()


def test_r8_a_span_is_redacted_wherever_it_has_text() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    redactor = Redactor(["s3cret-value"])
    provider.add_span_processor(SimpleSpanProcessor(RedactingExporter(exported, redactor.scrub)))
    tracer = provider.get_tracer("test")
    other = tracer.start_span("other")
    link = Link(other.get_span_context(), {"link": "s3cret-value"})
    with (
        pytest.raises(ValueError, match="s3cret-value"),
        tracer.start_as_current_span(
            "a s3cret-value", links=[link], attributes={"key": "s3cret-value", "n": 7}
        ),
    ):
        raise ValueError("Bearer abc.def and s3cret-value")
    (span,) = exported.get_finished_spans()
    shown = span.to_json()
    for secret in ("s3cret-value", "abc.def"):
        assert secret not in shown
    assert shown.count(REDACTED) >= 5
    assert span.name == f"a {REDACTED}"
    assert dict(span.attributes or {}) == {"key": REDACTED, "n": 7}
    assert [event.name for event in span.events] == ["exception"]
    assert span.links[0].context == other.get_span_context()
    provider.shutdown()


def test_a_library_says_the_same_line_once_a_second() -> None:
    """aiokafka says that a topic is missing at every answer of the broker: once a second is enough."""
    seldom = Seldom(("aiokafka",))

    def said(name: str, topic: str, at_s: float) -> bool:
        record = logging.LogRecord(name, logging.ERROR, "", 0, "Topic %s not found", (topic,), None)
        record.created = at_s
        return bool(seldom.filter(record))

    times = [10.0 + 0.01 * number for number in range(250)]
    assert sum(said("aiokafka.cluster", "fleet", at_s) for at_s in times) == 3
    assert said("aiokafka.cluster", "other", times[-1]), "another line"
    assert all(said("services.worker", "fleet", at_s) for at_s in times), "our own lines"
    assert sum(said("aiokafka.cluster", f"t{number}", 20.0) for number in range(2_000)) == 2_000
    assert len(seldom._said_s) <= 256


def test_the_services_log_says_a_librarys_line_once() -> None:
    program = (
        "import logging; from services.adapters.telemetry import setup_logging; setup_logging('test');"
        "[logging.getLogger('aiokafka.cluster').error('Topic %s not found', 'fleet') for _ in range(50)]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert 1 <= len(done.stderr.splitlines()) <= 5
