"""Logs and traces of a service: JSON lines on stderr, spans by the standard OTEL_* variables.

Law (R8): nothing leaves through a log line or a span unredacted: values of secret environment variables and
bearer tokens are replaced in every field, tracebacks included.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import orjson
import structlog

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_SELDOM_S = 1.0
_MOST_LINES = 256  # that are remembered
_SHORTEST_SECRET = 8  # anything shorter would black out ordinary words
_BEARER = re.compile(r"(?i)\bbearer\s+[^\s\"',;]+")
_AS_SCRUBBED = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_SUSPECTS = (b"earer", b"EARER", b"://")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")

EventDict = MutableMapping[str, Any]


class Redactor:
    """A structlog renderer of JSON lines; scrubs secrets from all text of an event, at any depth.

    Hardly a line has one, so it is made first and looked through as a whole. Law: whatever `scrub` would find
    in the event, the search finds in its line.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found = sorted({s for s in secrets if len(s) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, found))) if found else None
        self._suspects = (*filter(None, map(_in_a_line, found)), *_SUSPECTS)

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> bytes:
        try:
            line = _rendered(event)
        except TypeError:  # of a key, or a text that is no UTF-8
            return _rendered(self.scrub(event))
        for suspect in self._suspects:
            if suspect in line:
                return _rendered(self.scrub(event))
        return line

    def scrub(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.scrub_text(value)
        if isinstance(value, Mapping):
            return {self.scrub(name): self.scrub(item) for name, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.scrub(item) for item in value]
        if isinstance(value, (int, float, type(None))):
            return value
        return self.scrub_text(str(value))

    def scrub_text(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(REDACTED, text)
        if "earer" in text or "EARER" in text:
            text = _BEARER.sub(f"Bearer {REDACTED}", text)
        if "://" in text:
            text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
        return text


def _rendered(event: Any) -> bytes:
    return orjson.dumps(event, default=_plain, option=_AS_SCRUBBED)


def _plain(value: Any) -> Any:
    """What `scrub` makes of it."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (tuple, set, frozenset)) else str(value)


def _in_a_line(secret: str) -> bytes:
    """As it stands in JSON; empty where it cannot stand there."""
    try:
        return orjson.dumps(secret)[1:-1]
    except TypeError:
        return b""


def secrets_of(environment: Mapping[str, str], more_names: Iterable[str] = ()) -> list[str]:
    """Values of variables that are named like secrets, or in `more_names` (a pool's `api_key_env`)."""
    named = set(more_names)
    return [v for name, v in environment.items() if name in named or _SECRET_NAME.search(name.upper())]


class Seldom(logging.Filter):
    """The same line of a library at most once per second: aiokafka asks again for a topic or a leader that is
    missing as fast as the broker answers, and says so every time (600 lines a second were seen)."""

    def __init__(self, loggers: tuple[str, ...]) -> None:
        super().__init__()
        self._loggers = loggers
        self._said_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(self._loggers):
            return True
        line = record.name, f"{record.msg} {record.args}"
        if record.created - self._said_s.get(line, float("-inf")) < _SELDOM_S:
            return False
        if len(self._said_s) >= _MOST_LINES:
            self._said_s.clear()
        self._said_s[line] = record.created
        return True


def setup_logging(service: str, *, level: str = "info", secret_names: Iterable[str] = ()) -> None:
    """JSON lines on stderr for structlog and the standard library alike; call once, before anything runs."""
    redact = Redactor(secrets_of(os.environ, secret_names))

    def name_service(_logger: Any, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    number = logging.getLevelNamesMapping()[level.upper()]
    first: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_service,
    ]
    last: list[Any] = [structlog.processors.format_exc_info, redact]
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*first, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last, _as_text],
        )
    )
    handler.addFilter(Seldom(("aiokafka",)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.INFO))
    for chatty in ("aiokafka", "httpx2", "mcp"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _as_text(_logger: Any, _method: str, line: Any) -> str:
    """What the renderer made, for handlers that write text."""
    return str(line, "utf-8")


def setup_tracing(service: str, *, secret_names: Iterable[str] = ()) -> Callable[[], None]:
    """Exports spans where OTEL_* names an exporter; returns what flushes and stops it.

    Without one no SDK is set up: spans cost next to nothing and a caller's traceparent is still passed on.
    Honours OTEL_TRACES_EXPORTER (otlp, console, none), OTEL_EXPORTER_OTLP_*, OTEL_SERVICE_NAME,
    OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and OTEL_SDK_DISABLED. What is exported is redacted as log
    lines are. Raises ValueError for an unknown exporter.
    """
    exporter = _exporter_name(os.environ)
    if exporter == "none":
        return lambda: None
    from services.adapters import span_export  # noqa: PLC0415 - the SDK costs 0.2 s; only who exports pays

    redactor = Redactor(secrets_of(os.environ, secret_names))
    return span_export.export_spans(service, exporter, redactor.scrub)


def _exporter_name(environment: Mapping[str, str]) -> str:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    told = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if told:
        return told
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return "otlp" if any(environment.get(name) for name in endpoints) else "none"
