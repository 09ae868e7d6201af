"""What is noted of one HTTP request while it is served: for its log line, its metrics and its spans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.messages import TaskKind, TaskSucceeded, Usage
from services.ingress.tracing import Arrival, WorkSpan

RequestStatus = Literal["ok", "client_error", "backend_error", "deadline", "cancelled", "shed", "degraded"]
SCOPE_KEY = "chimera.call"


@dataclass(slots=True)
class CallRecord:
    """Grows as a request is served. Times are seconds; `started` is of the monotonic clock."""

    request_id: str
    headers: Mapping[str, str]  # the request's own, names in lower case
    span: WorkSpan
    started: float = field(default_factory=time.perf_counter)
    arrived_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    task_type: TaskKind | None = None  # None: not a call of a model
    model: str = ""
    pool: str | None = None
    task_id: str | None = None
    attempt: str | None = None
    status: RequestStatus | None = None
    reason: str | None = None
    first_token_s: float | None = None
    queue_s: float | None = None
    usage: Usage | None = None
    decided: Arrival | None = None  # where the outcome stands that this request was answered from
    stages: dict[str, float] = field(default_factory=dict)

    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def stage_done(self, name: str) -> None:
        """Books the time since the last stage that ended."""
        self.stages[name] = self.elapsed_s() - sum(self.stages.values())

    def content_begins(self) -> None:
        if self.first_token_s is None:
            self.first_token_s = self.elapsed_s()

    def succeeded(self, record: TaskSucceeded) -> None:
        """Takes over what the worker measured; called when the answer is ready to be written."""
        self.status = "ok"
        self.answered_by(record.run.pool, record.run.model, record.run.attempt)
        self.usage = record.usage
        timing = record.timing
        self.queue_s = timing.queue_ms / 1000
        self.stages |= {
            "queue": self.queue_s,
            "first_token": timing.first_token_ms / 1000,
            "decode": timing.decode_ms / 1000,
        }

    def answered_by(self, pool: str, model: str, attempt: str | None) -> None:
        self.pool, self.model, self.attempt = pool, model, attempt

    def finish_stages(self) -> None:
        """What is left of a success is the way there and back: the bus and the writing."""
        if self.status == "ok" and "decode" in self.stages:
            self.stages["reply"] = max(0.0, self.elapsed_s() - sum(self.stages.values()))


def record_of(scope: Any) -> CallRecord:
    """The record of a request's ASGI scope, put there by the edge."""
    record: CallRecord = scope[SCOPE_KEY]
    return record
