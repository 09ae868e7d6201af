"""What `results` says of a round: waits for a slot, and whose the slots' time was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loadtest.overhead.statistics import percentile
from loadtest.sharing.load import SLOTS, Job
from schemas.failures import FailureKind
from schemas.messages import AttemptFailed, Message, TaskFailed, TaskSucceeded

SETTLING_S = 2.0  # at a round's begin, not counted


@dataclass(slots=True)
class Round:
    """`jobs` by task_id; times in milliseconds since the epoch; waits in seconds."""

    jobs: dict[str, Job]
    begin_ms: float
    seconds: float
    waits: dict[str, list[float]] = field(default_factory=dict)  # of interactive work, by tenant
    firsts: list[float] = field(default_factory=list)  # of interactive work: until its first token
    slot_s: dict[str, float] = field(default_factory=lambda: {"interactive": 0.0, "batch": 0.0, "lost": 0.0})
    evictions: int = 0
    unended: int = 0

    @property
    def window_s(self) -> float:
        return self.seconds - SETTLING_S

    @property
    def spare_s(self) -> float:
        """Slot time that interactive work left."""
        return SLOTS * self.window_s - self.slot_s["interactive"]

    def read(self, messages: Iterable[Message]) -> None:
        """Takes what the worker wrote in this round."""
        ended = set()
        for message in messages:
            job = self.jobs.get(message.task_id)
            if job is None:
                continue
            if isinstance(message, TaskSucceeded):
                self._waited(job, message)
            if isinstance(message, TaskSucceeded | TaskFailed):
                ended.add(message.task_id)
            if isinstance(message, TaskSucceeded | TaskFailed | AttemptFailed):
                self._ran(job, message)
        self.unended = sum(not job.floods and task_id not in ended for task_id, job in self.jobs.items())

    def _waited(self, job: Job, message: TaskSucceeded) -> None:
        if job.priority == "interactive" and job.at_s >= SETTLING_S:
            self.waits.setdefault(job.tenant, []).append(message.timing.queue_ms / 1000)
            self.firsts.append((message.timing.queue_ms + message.timing.first_token_ms) / 1000)

    def _ran(self, job: Job, message: TaskSucceeded | TaskFailed | AttemptFailed) -> None:
        """A task that its deadline stopped ran on at the round's end: its time until then was no loss."""
        if message.run is None:
            return
        begin_ms = self.begin_ms + SETTLING_S * 1000
        end_ms = self.begin_ms + self.seconds * 1000
        ran_ms = min(end_ms, message.ended_ms) - max(begin_ms, message.run.started_ms)
        whose: str = job.priority
        if isinstance(message, AttemptFailed):
            whose = "lost"
            self.evictions += message.failure.kind is FailureKind.EVICTED
        self.slot_s[whose] += max(0.0, ran_ms) / 1000


@dataclass(frozen=True, slots=True)
class Arm:
    """All rounds of one arm."""

    name: str
    rounds: tuple[Round, ...]

    def waits(self, *, without: str | None = None) -> list[float]:
        return [
            wait
            for each in self.rounds
            for tenant, waits in each.waits.items()
            if tenant != without
            for wait in waits
        ]

    def p95_ms(self, *, without: str | None = None) -> float:
        return percentile(self.waits(without=without), 0.95) * 1000

    def p50_ms(self, *, without: str | None = None) -> float:
        return percentile(self.waits(without=without), 0.5) * 1000

    def first_p95_ms(self) -> float:
        return percentile([first for each in self.rounds for first in each.firsts], 0.95) * 1000

    def spare_share(self, whose: str) -> float:
        """Of the slot time that interactive work left: `batch` that came to something, or `lost`."""
        return sum(each.slot_s[whose] for each in self.rounds) / sum(each.spare_s for each in self.rounds)

    @property
    def busy_share(self) -> float:
        """Of all slots, by interactive work."""
        window_s = sum(SLOTS * each.window_s for each in self.rounds)
        return sum(each.slot_s["interactive"] for each in self.rounds) / window_s

    @property
    def evictions(self) -> int:
        return sum(each.evictions for each in self.rounds)
