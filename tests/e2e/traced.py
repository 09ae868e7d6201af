"""A fleet whose processes export their spans to a collector of the test's, over OTLP/HTTP."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from services.adapters.kafka.traits import BrokerKind
from tests.e2e.staged import SCRIPTED_POOL, SHORT, Scripted, until

UPSTREAM = "up-5f2c9e71d0b84a33"
"""The secret that the pool's backend is called with; its variable is not named like one."""
FLOOR = "not today"  # the pool's degraded answer, for who allows one


@dataclass(frozen=True, slots=True)
class Seen:
    """A span as it was exported; ids are hex. `kind`: 2 server, 3 client, 4 producer, 5 consumer."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass
class Collector:
    """What was exported, as spans and as the bytes that came."""

    spans: list[Seen] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_seen(service, span) for span in scope.spans]

    async def trace(self, trace_id: str, count: int) -> dict[str, Seen]:
        """The spans of a trace by name, once there are `count` of them."""

        async def look() -> dict[str, Seen] | None:
            found = {span.name: span for span in self.spans if span.trace_id == trace_id}
            return found if len(found) >= count else None

        return await until(look, f"{count} spans of trace {trace_id}")

    async def served(self, request_id: str) -> Seen:
        """The HTTP span of a request."""

        async def look() -> Seen | None:
            ours = [span for span in self.spans if span.attributes.get("chimera.request_id") == request_id]
            return next((span for span in ours if span.kind == 2), None)

        return await until(look, f"the span of request {request_id}")


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple(link.span_id.hex() for link in span.links),
        _attributes(span.attributes),
    )


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    """A collector and its OTLP endpoint, served while the block runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True, slots=True)
class Traced:
    fleet: Scripted
    collector: Collector

    async def metrics(self) -> dict[str, str]:
        """/metrics of every process by its name."""
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            urls = {name: one.spec.ready_url for name, one in self.fleet.stage.services.items()}
            answers = {
                name: await client.get(url.removesuffix("/readyz") + "/metrics") for name, url in urls.items()
            }
        assert all(answer.status_code == httpx.codes.OK for answer in answers.values())
        return {name: answer.text for name, answer in answers.items()}


@asynccontextmanager
async def traced_fleet(workdir: Path, broker: BrokerKind) -> AsyncIterator[Traced]:
    async with (
        collecting() as (collector, endpoint),
        ModelServerProcess(model="breaking", chunks=6) as server,
    ):
        pool = SCRIPTED_POOL.format(base_url=server.base_url, slots=8, context_tokens=8192, timeouts=SHORT)
        pool += f"    api_key: env:UPSTREAM_PASS\n    floor: {FLOOR}\n"
        text = f"version: 1\nprefix: traced.\npartitions: 4\npools:{pool}"
        environment = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "UPSTREAM_PASS": UPSTREAM,
            "CHIMERA_LOG_LEVEL": "debug",
        }
        async with Stage(StageOptions(workdir, text, broker, environment=environment)) as stage:
            yield Traced(Scripted(stage, server), collector)


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Prometheus text as values by sample name and by labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in re.findall(r"^([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        pairs = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels)))
        found.setdefault(name, {})[pairs] = float(value)
    return found
