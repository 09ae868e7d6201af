"""The law in a few lines, as an outsider would write it from its text: it imports nothing of the services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from loadtest.chaos.evidence import Evidence, LogRecord

TERMINAL = {"TaskSucceeded": "succeeded", "TaskFailed": "failed", "TaskClosed": "closed"}
# What a caller is told when its task was closed for a reason.
TOLD_OF_CLOSE = {
    "cancelled": "cancelled",
    "deadline": "deadline",
    "interrupted": "stream_interrupted",
    "superseded": "internal",
    "poison": "poison",
}
# Errors that say nothing of the task's outcome: it may have been accepted or not, and runs or not. An owner
# stops waiting at the deadline, with or without the log's word.
SAYS_NOTHING = frozenset(
    {
        "queue_unavailable",
        "shutting_down",
        "starting",
        "database_unavailable",
        "store_unavailable",
        "deadline",
    }
)


class Breach(NamedTuple):
    """`kind` is one of a few names, `subject` a task, request or attempt."""

    kind: str
    subject: str
    text: str


class Outcome(NamedTuple):
    """The first terminal record of a task: its state, the failure's kind and code or the close's reason, the
    attempt that decided, the text of a success, when it was written (seconds since the epoch)."""

    state: str
    reason: str
    code: str
    attempt: str | None
    text: str | None
    at_s: float

    def __str__(self) -> str:
        return " ".join(filter(None, (self.state, self.reason, self.attempt)))

    @property
    def told(self) -> frozenset[str]:
        """The codes by which a caller may hear of it; none of a success."""
        if self.state == "closed":
            return frozenset({TOLD_OF_CLOSE.get(self.reason, self.reason)})
        return frozenset(filter(None, (self.reason, self.code))) if self.state == "failed" else frozenset()


def outcome_of(record: LogRecord) -> Outcome:
    value: Mapping[str, Any] = record.value
    state, at_s = TERMINAL[record.kind], record.stamp_ms / 1000
    if state == "closed":
        return Outcome(state, value["reason"], "", None, None, at_s)
    attempt = (value.get("run") or {}).get("attempt")
    if state == "failed":
        failure = value["failure"]
        return Outcome(state, failure["kind"], failure.get("code") or "", attempt, None, at_s)
    answer = value["answer"].get("inline")
    text = answer["choices"][0]["message"]["content"] if answer else None
    return Outcome(state, "", "", attempt, text, at_s)


class Decided:
    """The log, read by the one rule: the first terminal record of a task decides."""

    def __init__(self, evidence: Evidence) -> None:
        self.records: dict[str, list[LogRecord]] = defaultdict(list)
        for record in evidence.records:
            self.records[record.task_id].append(record)
        self.outcomes: dict[str, Outcome] = {}
        self.terminals: dict[str, int] = {}
        for task_id, records in self.records.items():
            ends = [record for record in records if record.kind in TERMINAL]
            if ends:
                self.outcomes[task_id] = outcome_of(ends[0])
                self.terminals[task_id] = len(ends)
        self.tasks = set(evidence.accepted) | set(evidence.submitted)
        self._by_request: dict[str, set[str]] = defaultdict(set)
        for task_id, requests in evidence.accepted.items():
            for request_id in requests:
                self._by_request[request_id].add(task_id)

    def of_request(self, request_id: str) -> set[str]:
        """The tasks that a request stands behind."""
        return self._by_request.get(request_id, set())

    def outcomes_of(self, tasks: Iterable[str]) -> list[Outcome]:
        return [self.outcomes[task] for task in tasks if task in self.outcomes]
