"""What happens when: drawn from a seed alone, so that a run can be repeated.

Law: every fault is over by the end, no target has two at once, and at most one broker node is out at a time
(a restart of all of them is drawn instead of faults of single ones).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal[
    "worker_kill",
    "worker_freeze",
    "ingress_kill",
    "orchestrator_kill",
    "node_kill",
    "node_freeze",
    "node_restart",
    "cluster_restart",
    "rebalance",
    "database_freeze",
    "backend",
]
BROKER_KINDS: frozenset[FaultKind] = frozenset(
    {"node_kill", "node_freeze", "node_restart", "cluster_restart"}
)
MOODS = ("hangs", "hangs_midway", "breaks", "lies", "crawls", "refuses")
SESSION_S = 6.0  # a frozen worker is dead to its group after that
_TRIES = 40


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` to `until_s` seconds after the load began; `mood` of a backend, `share` of its calls."""

    at_s: float
    until_s: float
    kind: FaultKind
    target: str
    mood: str = ""
    share: float = 1.0

    def __str__(self) -> str:
        what = f"{self.kind} {self.target}" + (f" {self.mood} {self.share:.0%}" if self.mood else "")
        return f"{self.at_s:.1f}-{self.until_s:.1f} {what}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is to strike, and for how long: faults begin at `start_s` and are over by `seconds`."""

    workers: tuple[str, ...]
    ingresses: tuple[str, ...]
    backends: tuple[str, ...]
    nodes: int = 3
    seconds: float = 20.0
    start_s: float = 2.0
    others: tuple[int, int] = (4, 7)  # how many faults beside those that every seed has


@dataclass(frozen=True, slots=True)
class _Kind:
    """How often a kind is drawn, how long it lasts, and how long its target then takes to be whole again."""

    weight: int
    lasts_s: tuple[float, float] = (0.0, 0.0)
    recovers_s: float = 0.0


_KINDS: dict[FaultKind, _Kind] = {
    "worker_kill": _Kind(5, recovers_s=5.0),
    "worker_freeze": _Kind(4, (0.5, 3.0), 1.0),
    "ingress_kill": _Kind(2, recovers_s=5.0),
    "orchestrator_kill": _Kind(2, recovers_s=5.0),
    "rebalance": _Kind(3, (3.0, 6.0), 2.0),
    "database_freeze": _Kind(3, (1.0, 5.0), 1.0),
    "backend": _Kind(4, (2.0, 5.0), 0.0),
    "node_kill": _Kind(3, (0.5, 4.0), 9.0),
    "node_freeze": _Kind(3, (1.0, 7.0), 4.0),
    "node_restart": _Kind(2, (0.0, 0.0), 11.0),
    "cluster_restart": _Kind(1, (0.2, 1.5), 14.0),
}
_WHOLE_CLUSTER = 0.12  # of the seeds: the chance that all nodes go at once
_LONG_FREEZE = (SESSION_S + 1.0, SESSION_S + 4.0)
_LONG_FREEZES = 0.4  # of the freezes of a worker: the share beyond the session time-out


@dataclass(slots=True)
class _Drawing:
    chance: random.Random
    shape: Shape
    faults: list[Fault] = field(default_factory=list)
    whole_until: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, kind: FaultKind) -> None:
        """A fault of that kind where it fits; where nothing fits, none."""
        lasts_s = self._lasts(kind)
        latest = self.shape.seconds - lasts_s
        for _ in range(_TRIES):
            target = self._target(kind)
            at_s = self.chance.uniform(self.shape.start_s, max(self.shape.start_s, latest))
            if at_s + lasts_s <= self.shape.seconds and self._free(kind, target, at_s, lasts_s):
                self.faults.append(self._fault(kind, target, round(at_s, 3), round(at_s + lasts_s, 3)))
                return

    def _fault(self, kind: FaultKind, target: str, at_s: float, until_s: float) -> Fault:
        if kind != "backend":
            return Fault(at_s, until_s, kind, target)
        mood, share = self.chance.choice(MOODS), self.chance.choice((0.3, 0.6, 1.0))
        return Fault(at_s, until_s, kind, target, mood, share)

    def _lasts(self, kind: FaultKind) -> float:
        if kind == "worker_freeze" and self.chance.random() < _LONG_FREEZES:
            return self.chance.uniform(*_LONG_FREEZE)
        return self.chance.uniform(*_KINDS[kind].lasts_s)

    def _target(self, kind: FaultKind) -> str:
        if kind in BROKER_KINDS:
            return "all" if kind == "cluster_restart" else str(self.chance.randrange(self.shape.nodes))
        targets: Sequence[str] = {
            "ingress_kill": self.shape.ingresses,
            "orchestrator_kill": ("orchestrator",),
            "database_freeze": ("database",),
            "rebalance": ("extra",),
            "backend": self.shape.backends,
        }.get(kind, self.shape.workers)
        return self.chance.choice(targets)

    def _free(self, kind: FaultKind, target: str, at_s: float, lasts_s: float) -> bool:
        place = "broker" if kind in BROKER_KINDS else target
        begins, ends = at_s, at_s + lasts_s + _KINDS[kind].recovers_s
        taken = self.whole_until.setdefault(place, [])
        if any(begins < until and since < ends for since, until in taken):
            return False
        taken.append((begins, ends))
        return True


def draw(seed: int, shape: Shape) -> tuple[Fault, ...]:
    """The faults of a seed in the order of their beginning."""
    drawing = _Drawing(random.Random(seed), shape)
    chance = drawing.chance
    for kind in _of_every_seed(chance):
        drawing.add(kind)
    kinds = [kind for kind in _KINDS if kind not in BROKER_KINDS]
    weights = [_KINDS[kind].weight for kind in kinds]
    for kind in chance.choices(kinds, weights, k=chance.randint(*shape.others)):
        drawing.add(kind)
    return tuple(sorted(drawing.faults, key=lambda fault: (fault.at_s, fault.kind, fault.target)))


def _of_every_seed(chance: random.Random) -> list[FaultKind]:
    """One broker fault at least, a worker's death and a backend's mood."""
    if chance.random() < _WHOLE_CLUSTER:
        brokers: list[FaultKind] = ["cluster_restart"]
    else:
        single: list[FaultKind] = ["node_kill", "node_freeze", "node_restart"]
        brokers = chance.choices(single, [_KINDS[kind].weight for kind in single], k=2)
    return [*brokers, "worker_kill", "backend"]
