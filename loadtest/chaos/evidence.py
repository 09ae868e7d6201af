"""What the four readers and the model servers say of one seed: all that the check may look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadtest.kills.client import Told
from loadtest.model_server.attempts import AttemptRecord

UNHEARD_S = 0.05


class LogRecord(NamedTuple):
    """A record of `results` as a plain consumer reads it. `kind` is its header `type`."""

    partition: int
    offset: int
    stamp_ms: int
    kind: str
    task_id: str
    request_id: str
    value: Mapping[str, Any]


class EdgeLine(NamedTuple):
    """What an ingress wrote down of one call when it was over."""

    edge: str
    request_id: str
    task_id: str | None
    attempt: str | None
    http_status: int
    status: str
    reason: str | None


class Death(NamedTuple):
    """A process that was killed: its name, its pid, when (seconds since the epoch)."""

    name: str
    pid: int
    at_s: float


@dataclass(slots=True)
class Evidence:
    """accepted: the request_ids of every task that stands on a lane. submitted: task_ids that the broker
    acknowledged. records: of `results`, in the order of each partition. deaths: of services, by kill -9.
    log_away: from when until when (seconds since the epoch) a broker was out and the cluster not whole again.
    unheard_s: a try that dies unheard so young may leave no row.
    """

    told: list[Told] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    accepted: dict[str, set[str]] = field(default_factory=dict)
    records: list[LogRecord] = field(default_factory=list)
    tasks: list[Mapping[str, Any]] = field(default_factory=list)
    ledger: list[Mapping[str, Any]] = field(default_factory=list)
    parked: list[Mapping[str, Any]] = field(default_factory=list)
    edge: list[EdgeLine] = field(default_factory=list)
    attempts: list[AttemptRecord] = field(default_factory=list)
    deaths: Sequence[Death] = ()
    log_away: Sequence[tuple[float, float]] = ()
    unheard_s: float = UNHEARD_S


def asked(request_id: str) -> str:
    """What was asked for: a call that is repeated with its key has the first one's name and a number."""
    return request_id.partition(":")[0]
