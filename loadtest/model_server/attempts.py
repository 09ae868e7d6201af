"""The log of attempts: what each POST asked for, what was sent, and how it ended.

A line is one `write` to a file opened for appending, unbuffered: lines written survive kill -9.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict

RUNNING = "running"
OK = "ok"
DISCONNECTED = "disconnected"
REFUSED = "refused"
STOPPED = "stopped"


class AttemptRecord(BaseModel):
    """One line of the log. `started_s` and `ended_s` are seconds since the epoch, `seconds` the time between.

    `attempt` is the caller's x-request-id, `others` its x-chimera-attempts (tries that share the call),
    `traceparent` its header, `marker` the body's x_marker.
    `outcome`: running, ok, disconnected (the client hung up), scripted:<what>, refused (our 400), stopped
    (SIGTERM). `tokens_out` and `chunks` (content chunks of a stream) are those sent.
    """

    model_config = ConfigDict(frozen=True)

    attempt: str | None
    marker: Any
    path: str
    stream: bool
    started_s: float
    ended_s: float | None
    seconds: float | None
    outcome: str
    tokens_in: int
    tokens_out: int
    chunks: int
    traceparent: str | None = None
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class Attempt:
    """One POST while it is answered; whoever answers counts here what it has sent."""

    attempt: str | None
    path: str
    traceparent: str | None = None
    others: tuple[str, ...] = ()
    marker: Any = None
    stream: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    chunks: int = 0
    outcome: str = RUNNING
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    began: float = field(default_factory=time.perf_counter)

    def line(self) -> bytes:
        return orjson.dumps(
            {
                "attempt": self.attempt,
                "marker": self.marker,
                "path": self.path,
                "stream": self.stream,
                "started_s": self.started_s,
                "ended_s": self.ended_s,
                "seconds": None if self.ended_s is None else self.ended_s - self.started_s,
                "outcome": self.outcome,
                "tokens_in": self.tokens_in,
                "tokens_out": self.tokens_out,
                "chunks": self.chunks,
                "traceparent": self.traceparent,
                "others": self.others,
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


class AttemptLog:
    """Ended attempts (the last `kept` in memory, all of them in the file) and those that run."""

    def __init__(self, file: Path | None, kept: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = None if file is None else os.open(file, flags, 0o644)
        self._ended: deque[bytes] = deque(maxlen=kept)
        self.running: dict[int, Attempt] = {}
        self.outcomes: Counter[str] = Counter()
        self.tokens_in = 0
        self.tokens_out = 0

    def begin(self, attempt: Attempt) -> None:
        self.running[id(attempt)] = attempt

    def end(self, attempt: Attempt) -> None:
        del self.running[id(attempt)]
        # The wall clock may step; the length of an attempt must not.
        attempt.ended_s = attempt.started_s + (time.perf_counter() - attempt.began)
        line = attempt.line()
        self._ended.append(line)
        self.outcomes[attempt.outcome] += 1
        self.tokens_in += attempt.tokens_in
        self.tokens_out += attempt.tokens_out
        if self._descriptor is not None:
            os.write(self._descriptor, line)

    def lines(self) -> bytes:
        """Ended attempts in the order of their ends, then the running ones in the order of their starts."""
        return b"".join([*self._ended, *(attempt.line() for attempt in self.running.values())])

    def clear(self) -> None:
        """Forgets ended attempts and counts; the file keeps its lines."""
        self._ended.clear()
        self.outcomes.clear()
        self.tokens_in = self.tokens_out = 0

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def metrics_text(log: AttemptLog, busy: int, queued: int) -> bytes:
    """Prometheus text with llama.cpp's names, and a counter of attempts by outcome of our own."""
    lines = [
        "# TYPE llamacpp:requests_processing gauge",
        f"llamacpp:requests_processing {busy}",
        "# TYPE llamacpp:requests_deferred gauge",
        f"llamacpp:requests_deferred {queued}",
        "# TYPE llamacpp:prompt_tokens_total counter",
        f"llamacpp:prompt_tokens_total {log.tokens_in}",
        "# TYPE llamacpp:tokens_predicted_total counter",
        f"llamacpp:tokens_predicted_total {log.tokens_out}",
        "# TYPE model_server_attempts_total counter",
    ]
    for outcome, count in sorted(log.outcomes.items()):
        lines.append(f'model_server_attempts_total{{outcome="{outcome}"}} {count}')
    return ("\n".join(lines) + "\n").encode("ascii")
