"""Every attempt that the model servers counted has exactly one row in the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from loadtest.chaos.evidence import Death, Evidence, asked
from loadtest.chaos.law import Breach, Decided
from loadtest.model_server.attempts import DISCONNECTED, OK, AttemptRecord

Row = Mapping[str, Any]
_SAME_MOMENT_S = 0.5
_ON_ITS_WAY_S = 0.05  # a call from a worker to its model server, on a busy machine


def attempt_breaches(evidence: Evidence, decided: Decided) -> list[Breach]:
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.ledger:
        rows[row["attempt"]].append(row)
    found = [
        Breach("double row", attempt, f"{len(several)} rows of the attempt in the ledger")
        for attempt, several in rows.items()
        if len(several) > 1
    ]
    seen = Counter(attempt.attempt for attempt in evidence.attempts)
    found += [
        Breach("copied attempt", str(attempt), f"the model server saw it {times} times")
        for attempt, times in seen.items()
        if times > 1 or attempt is None
    ]
    for attempt in evidence.attempts:
        found += _call_breaches(evidence, decided, attempt, rows.get(attempt.attempt or "", []))
    found += _open_rows(evidence)
    return found + _verdicts(evidence, decided)


def _call_breaches(
    evidence: Evidence, decided: Decided, attempt: AttemptRecord, rows: list[Row]
) -> list[Breach]:
    name = str(attempt.attempt)
    if not rows:
        return _without_a_row(evidence, attempt)
    row = rows[0]
    requests = {asked(one) for one in evidence.accepted.get(row["task_id"], ())}
    if attempt.marker not in requests:
        return [Breach("row of another task", name, f"ran {attempt.marker}, the row says {row['task_id']}")]
    outcome = decided.outcomes.get(row["task_id"])
    won = outcome is not None and outcome.state == "succeeded" and outcome.attempt == attempt.attempt
    if won and attempt.outcome == OK and row["output_tokens"] != attempt.tokens_out:
        sent, counted = attempt.tokens_out, row["output_tokens"]
        return [Breach("tokens miscounted", name, f"{sent} sent, {counted} in the ledger")]
    return []


def lived_s(evidence: Evidence, attempt: AttemptRecord) -> float:
    """How old it became, in seconds. One whose worker was killed was over then, however late a busy model
    server notices that nobody listens, or that it was called at all."""
    seconds = attempt.seconds or 0.0
    if attempt.outcome != DISCONNECTED:
        return seconds
    ended_s = attempt.started_s + seconds
    ages = [
        max(0.0, death.at_s - attempt.started_s)
        for death in evidence.deaths
        if death.name.startswith("worker-")
        and attempt.started_s - _ON_ITS_WAY_S < death.at_s
        and abs(ended_s - death.at_s) < _SAME_MOMENT_S
    ]
    return min([seconds, *ages])


def _without_a_row(evidence: Evidence, attempt: AttemptRecord) -> list[Breach]:
    name, seconds = str(attempt.attempt), attempt.seconds or 0.0
    if lived_s(evidence, attempt) < evidence.unheard_s:
        return []
    what = f"{seconds:.3f} s of {attempt.marker} at the model server ({attempt.outcome})"
    if any(_took_it_along(away, death, attempt) for away in evidence.log_away for death in evidence.deaths):
        return [Breach("lost with worker and log", name, f"{what}; its worker died while a broker was out")]
    return [Breach("no ledger row", name, what)]


def _took_it_along(away: tuple[float, float], death: Death, attempt: AttemptRecord) -> bool:
    """Whether that worker may have died with the record of the try, before a broker could take it."""
    began, ended = away
    last_s = attempt.ended_s or attempt.started_s
    return (
        death.name.startswith("worker-")
        and began < death.at_s < ended
        and began - _SAME_MOMENT_S < last_s < death.at_s + _SAME_MOMENT_S
    )


def _open_rows(evidence: Evidence) -> list[Breach]:
    dead = {death.pid for death in evidence.deaths}
    return [
        Breach("open row", row["attempt"], f"of {row['worker']}, which lives; task {row['task_id']}")
        for row in evidence.ledger
        if row["state"] == "open" and worker_pid(row["worker"]) not in dead
    ]


def _verdicts(evidence: Evidence, decided: Decided) -> list[Breach]:
    """A success has one attempt that it is owed to, and that one is in the log."""
    owed: dict[str, list[str]] = defaultdict(list)
    for row in evidence.ledger:
        if row["verdict"] == "outcome":
            owed[row["task_id"]].append(row["attempt"])
    return [
        Breach("wrong verdict", task_id, f"{outcome} in the log; the ledger owes it to {owed[task_id]}")
        for task_id, outcome in decided.outcomes.items()
        if outcome.state == "succeeded" and owed[task_id] != [outcome.attempt]
    ]


def worker_pid(worker: str) -> int:
    """A worker is called pool-host-pid-random; 0 where it is not."""
    parts = worker.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0
