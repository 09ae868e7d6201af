"""The check of one seed: breaches of the law, and the counts that are printed beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.chaos.check_attempts import attempt_breaches, lived_s
from loadtest.chaos.check_callers import caller_breaches
from loadtest.chaos.check_tasks import task_breaches
from loadtest.chaos.evidence import UNHEARD_S, Evidence
from loadtest.chaos.law import Breach, Decided
from loadtest.kills.client import Told


@dataclass(frozen=True, slots=True)
class Verdict:
    """`counts` by name; `outcomes` of accepted tasks and `heard` of callers by kind."""

    breaches: tuple[Breach, ...]
    counts: Mapping[str, int]
    outcomes: Mapping[str, int] = field(default_factory=dict)
    heard: Mapping[str, int] = field(default_factory=dict)


def check(evidence: Evidence) -> Verdict:
    decided = Decided(evidence)
    breaches = (
        *task_breaches(evidence, decided),
        *attempt_breaches(evidence, decided),
        *caller_breaches(evidence, decided),
    )
    attempts, rows = evidence.attempts, {row["attempt"] for row in evidence.ledger}
    young = [one for one in attempts if lived_s(evidence, one) < UNHEARD_S]
    counts = {
        "calls": len(evidence.told) + len(evidence.submitted),
        "accepted": len(decided.tasks),
        "attempts": len(attempts),
        "attempts under 50 ms": len(young),
        "attempts under 50 ms without a row": sum(one.attempt not in rows for one in young),
        "ledger rows": len(evidence.ledger),
        "ledger rows of calls that never arrived": len(rows - {one.attempt for one in attempts}),
        "rows left open by a killed worker": sum(row["state"] == "open" for row in evidence.ledger),
        "tasks with later terminal records": sum(n > 1 for n in decided.terminals.values()),
        "tasks that were parked": len(parked_tasks(evidence)),
    }
    outcomes = Counter(
        " ".join((one.state, one.reason)).strip() for one in decided.outcomes_of(decided.tasks)
    )
    return Verdict(breaches, counts, outcomes, Counter(_heard(told) for told in evidence.told))


def parked_tasks(evidence: Evidence) -> set[str]:
    """Those that a row held at some time."""
    return {
        record.task_id
        for record in evidence.records
        if record.kind == "TaskParked" or record.value.get("next") == "parked"
    }


def _heard(told: Told) -> str:
    if told.complete:
        return "answered"
    if told.hung_up:
        return "hung up"
    return told.code or "connection broke"
