"""How long the tasks of a killed worker stood still: from the kill to the start of their next attempt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from loadtest.chaos.check_attempts import worker_pid
from loadtest.chaos.evidence import Death, Evidence, LogRecord
from loadtest.chaos.law import TERMINAL


def recoveries(evidence: Evidence) -> list[float]:
    """Seconds, one for each task that a killed worker ran and that another attempt then took up."""
    by_task: dict[str, list[LogRecord]] = defaultdict(list)
    for record in evidence.records:
        by_task[record.task_id].append(record)
    return [
        seconds
        for death in evidence.deaths
        for records in by_task.values()
        for seconds in _stood_still(death, records)
    ]


def _stood_still(death: Death, records: Iterable[LogRecord]) -> Iterable[float]:
    """The time until the next start, where the task ran on that worker when it died."""
    at_ms, running = death.at_s * 1000, None
    for record in records:
        attempt = attempt_of(record)
        if record.kind == "AttemptStarted":
            run = record.value["run"]
            if record.stamp_ms <= at_ms:
                running = attempt if worker_pid(run["worker"]) == death.pid else None
            elif running not in (None, attempt):
                yield (record.stamp_ms - at_ms) / 1000
                return
        elif record.kind in TERMINAL or (record.kind == "AttemptFailed" and attempt == running):
            running = None


def attempt_of(record: LogRecord) -> str | None:
    """The attempt that a record is about."""
    run = record.value.get("run")
    attempt = run["attempt"] if run else record.value.get("attempt")
    return None if attempt is None else str(attempt)
