"""What ails a fleet: evidence in, findings out, each with its cause and its cure.

Pure. Evidence is what heartbeats, the log of the last minutes, the lanes and a few probes say; a rule looks
at it and speaks only where it can name a cause. Rules are grouped by what people complain about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode

Symptom = Literal["down", "slow", "poor", "broken_streams", "mixed_sessions", "fails_under_load"]
FEW = 5  # below so many outcomes nothing is said about shares


@dataclass(frozen=True, slots=True)
class BackendEvidence:
    """One backend: `waiting`: requests inside the server that wait, where it tells."""

    base_url: str
    health: str
    breaker: str
    waiting: float | None = None


@dataclass(frozen=True, slots=True)
class PoolEvidence:
    """A pool in the window. Milliseconds are of successes; `failures` of attempts and tasks, by kind.

    slots: what its workers may run now; configured: what the file says times its workers. cut: answers that
    ended for their length. others: successes of tasks that could have gone to a better pool.
    """

    name: str
    quality: float
    mode: PoolMode = "running"
    ready: int = 0
    loading: int = 0
    dead: tuple[str, ...] = ()
    slots: int = 0
    configured: int = 0
    in_flight: int = 0
    queued: int = 0
    queue_s: float = 0.0
    backends: tuple[BackendEvidence, ...] = ()
    device: str | None = None
    succeeded: int = 0
    cut: int = 0
    queue_ms: tuple[float, float] = (0.0, 0.0)  # median, 95th percentile
    first_token_ms: tuple[float, float] = (0.0, 0.0)
    decode_ms: tuple[float, float] = (0.0, 0.0)
    failures: Mapping[FailureKind, int] = field(default_factory=dict)
    auto: int = 0  # successes whose caller left the choice to the router

    def failed(self, *kinds: FailureKind) -> int:
        return sum(self.failures.get(kind, 0) for kind in kinds)

    @property
    def ended(self) -> int:
        return self.succeeded + sum(self.failures.values())


@dataclass(frozen=True, slots=True)
class Probe:
    """A question that the doctor asked: `mixed` where the answer was to another one's question."""

    pool: str
    good: bool
    seconds: float
    chunks: int = 0
    mixed: bool = False
    said: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known. Sessions: how many had several tasks, and which of them moved between workers or belong
    to several tenants. lost_streams: tasks closed as interrupted."""

    window_s: float
    pools: Sequence[PoolEvidence]
    bus_ms: float | None = None  # one acknowledged record; None: no answer
    database_up: bool = True
    edge_up: bool = True
    books_behind: int = 0  # records of `results` that are not in the rows yet
    topics_wrong: tuple[str, ...] = ()
    sessions: int = 0
    moved_sessions: tuple[str, ...] = ()
    shared_sessions: tuple[str, ...] = ()
    lost_streams: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    probes: Sequence[Probe] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """`weight` 0..1: how much of the trouble it explains; the gravest first."""

    symptom: Symptom
    where: str
    cause: str
    cure: str
    weight: float


Rule = Callable[[Evidence], list[Finding]]


def diagnose(evidence: Evidence, rules: Sequence[Rule]) -> list[Finding]:
    """All findings of all rules, the gravest first."""
    found = [finding for rule in rules for finding in rule(evidence)]
    return sorted(found, key=lambda finding: (-finding.weight, finding.symptom, finding.where))
