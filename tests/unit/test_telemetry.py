"""R8: no secret leaves through a log line, and traces are exported only where an exporter is named."""

from __future__ import annotations

import logging
import subprocess
import sys

import orjson
import pytest

from services.adapters.telemetry import REDACTED, Redactor, secrets_of, setup_tracing

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


def test_an_unknown_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ValueError, match="otlp, console or none"):
        setup_tracing("test")


def test_without_an_exporter_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    setup_tracing("test")()
    assert not logging.getLogger("opentelemetry").handlers
