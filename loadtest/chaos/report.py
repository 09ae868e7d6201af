"""The figures of a chaos run: a line for each seed, totals, and the evidence of breaches for reading."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from loadtest.chaos.check import Verdict
from loadtest.chaos.evidence import Evidence
from loadtest.chaos.law import Breach
from loadtest.chaos.schedule import Fault

LIVE_S, PARKED_S = 15.0, 30.0
_MOST_KEPT = 20  # breaches of a seed whose evidence is written down


@dataclass(frozen=True, slots=True)
class SeedReport:
    """One seed. Seconds after the last heal: live_s until every pool answered by every ingress, parked_s
    until the last task that a row had held was over, last_s until the last task from before it was."""

    seed: int
    faults: tuple[Fault, ...]
    verdict: Verdict
    live_s: float | None
    parked_s: float
    last_s: float
    recoveries: tuple[float, ...]
    took_s: float
    unhealed: tuple[str, ...] = ()

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """Of the law, and of the bounds within which a fleet must be itself again."""
        late = []
        if self.live_s is None or self.live_s > LIVE_S:
            late.append(
                Breach("late", f"seed {self.seed}", f"live {_seconds(self.live_s)} after the last heal")
            )
        if self.parked_s > PARKED_S:
            late.append(
                Breach("late", f"seed {self.seed}", f"parked tasks ended after {self.parked_s:.1f} s")
            )
        gone = [Breach("not healed", f"seed {self.seed}", what) for what in self.unhealed]
        return (*self.verdict.breaches, *late, *gone)

    def lines(self) -> list[str]:
        verdict, struck = self.verdict, Counter(fault.kind for fault in self.faults)
        calls, accepted = verdict.counts["calls"], verdict.counts["accepted"]
        found = [f"    {breach.kind}: {breach.subject}: {breach.text}" for breach in self.breaches]
        return [
            f"seed {self.seed}: {len(self.faults)} faults ({_counted(struck)}) in {self.took_s:.0f} s",
            f"  {calls} calls, {accepted} accepted: {_counted(verdict.outcomes)}",
            f"  callers: {_counted(verdict.heard)}",
            self._attempts_line(),
            self._times_line(),
            f"  breaches: {len(self.breaches)}",
            *found[:_MOST_KEPT],
        ]

    def _attempts_line(self) -> str:
        counts = self.verdict.counts
        young, unheard = counts["attempts under 50 ms"], counts["attempts under 50 ms without a row"]
        seen = f"{counts['attempts']} attempts ({young} under 50 ms, of which {unheard} without a row)"
        return f"  {seen}, {counts['ledger rows']} ledger rows"

    def _times_line(self) -> str:
        ended = f"parked tasks over after {self.parked_s:.1f} s, all after {self.last_s:.1f} s"
        return f"  live after {_seconds(self.live_s)}, {ended}; {_spread(self.recoveries)}"

    def as_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            **asdict(self),
            "faults": [str(fault) for fault in self.faults],
            "verdict": {
                "counts": verdict.counts,
                "outcomes": verdict.outcomes,
                "heard": verdict.heard,
            },
            "breaches": [breach._asdict() for breach in self.breaches],
        }


def totals(reports: Sequence[SeedReport]) -> list[str]:
    """The figures of all seeds together."""
    counts: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    for report in reports:
        counts.update(report.verdict.counts)
        outcomes.update(report.verdict.outcomes)
        struck.update(fault.kind for fault in report.faults)
    live = [report.live_s for report in reports if report.live_s is not None]
    breaches = Counter(breach.kind for report in reports for breach in report.breaches)
    minutes = sum(report.took_s for report in reports) / 60
    return [
        f"{len(reports)} seeds in {minutes:.1f} min, {struck.total()} faults: {_counted(struck)}",
        *(f"{name}: {count}" for name, count in counts.items()),
        f"outcomes: {_counted(outcomes)}",
        f"live after the last heal: {_spread(live)} (promised: {LIVE_S:.0f} s)",
        f"parked tasks over: worst {max(report.parked_s for report in reports):.1f} s ({PARKED_S:.0f} s)",
        f"after a worker's kill -9: {_spread([s for report in reports for s in report.recoveries])}",
        f"breaches: {breaches.total()}" + (f" ({_counted(breaches)})" if breaches else ""),
    ]


def keep_evidence(folder: Path, report: SeedReport, evidence: Evidence) -> Path | None:
    """Writes all that was seen of the subjects of the first breaches; None where there are none."""
    if not report.breaches:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"seed-{report.seed}.json"
    found = [{"breach": breach, **_seen(evidence, breach)} for breach in report.breaches[:_MOST_KEPT]]
    whole = {
        "faults": [str(fault) for fault in report.faults],
        "deaths": evidence.deaths,
        "breaches": found,
    }
    file.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2, default=_plain))
    return file


def _seen(evidence: Evidence, breach: Breach) -> dict[str, Any]:
    """Everything that is about the same task, whatever the breach names it by."""
    told = [one for one in evidence.told if breach.subject in (one.request_id, one.key)]
    requests = {breach.subject} | {one.request_id for one in told}
    ledger = [row for row in evidence.ledger if breach.subject in (row["attempt"], row["task_id"])]
    attempts = [one for one in evidence.attempts if breach.subject == one.attempt]
    requests |= {str(one.marker) for one in attempts}
    tasks = {breach.subject} | {str(row["task_id"]) for row in ledger}
    tasks |= {task for task, names in evidence.accepted.items() if names & requests}
    requests |= {name for task in tasks for name in evidence.accepted.get(task, ())}
    return {
        "told": [asdict(one) for one in evidence.told if one.request_id in requests],
        "edge": [line._asdict() for line in evidence.edge if line.request_id in requests],
        "records": [record._asdict() for record in evidence.records if record.task_id in tasks],
        "tasks": [row for row in evidence.tasks if row["task_id"] in tasks],
        "ledger": [row for row in evidence.ledger if row["task_id"] in tasks],
        "parked": [row for row in evidence.parked if row["task_id"] in tasks],
        "attempts": [one.model_dump() for one in evidence.attempts if one.marker in requests],
    }


def _plain(value: object) -> Any:
    return list(value) if isinstance(value, tuple) else repr(value)


def _counted(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f} s"


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "no task was taken up again"
    return f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s of {len(seconds)}"
