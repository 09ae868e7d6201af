"""Every accepted task has exactly one outcome, in the log and in its rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.chaos.evidence import Evidence
from loadtest.chaos.law import Breach, Decided, Outcome

_HOLDING = ("parked", "sweeping")
Row = Mapping[str, Any]


def task_breaches(evidence: Evidence, decided: Decided) -> list[Breach]:
    rows, parked = _by_task(evidence.tasks), _by_task(evidence.parked)
    found: list[Breach] = []
    for task_id in sorted(decided.tasks):
        outcome = decided.outcomes.get(task_id)
        if outcome is None:
            found.append(Breach("never ended", task_id, f"accepted; the log has {_kinds(decided, task_id)}"))
            continue
        partitions = {record.partition for record in decided.records[task_id]}
        if len(partitions) > 1:
            found.append(Breach("two logs", task_id, f"its records are in partitions {sorted(partitions)}"))
        found += _row_breaches(task_id, outcome, rows.get(task_id, []))
        if any(row["state"] in _HOLDING for row in parked.get(task_id, [])):
            found.append(Breach("still parked", task_id, f"{outcome} in the log, and a row that holds it"))
    return found


def _kinds(decided: Decided, task_id: str) -> list[str]:
    return [record.kind for record in decided.records.get(task_id, [])]


def _row_breaches(task_id: str, outcome: Outcome, rows: Sequence[Row]) -> list[Breach]:
    if not rows:
        return [Breach("no row", task_id, f"{outcome} in the log")]
    if len(rows) > 1:
        return [Breach("double row", task_id, f"{len(rows)} rows of the task")]
    (row,) = rows
    said = (row["state"], _reason(row), row["attempt"])
    if said != (outcome.state, outcome.reason, outcome.attempt):
        return [Breach("row disagrees", task_id, f"the log says {outcome}, the row {said}")]
    return []


def _reason(row: Row) -> str:
    if row["state"] == "failed":
        return str(json.loads(row["failure"])["kind"])
    return row["reason"] or ""


def _by_task(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["task_id"]].append(row)
    return found
