"""The law, checked from outside: one outcome per accepted task, one ledger row per attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.kills.client import Told
from loadtest.kills.evidence import Evidence
from loadtest.model_server.attempts import AttemptRecord

UNHEARD_S = 0.05  # a try that dies unheard in its first 50 ms may leave no row


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts, and a line for each breach of the law."""

    counts: dict[str, int]
    breaches: tuple[str, ...]


def check(evidence: Evidence, told: Sequence[Told], attempts: Sequence[AttemptRecord]) -> Verdict:
    breaches: list[str] = []
    by_request = {request: task for task, request in evidence.accepted.items()}
    for task_id in evidence.accepted:
        breaches += _outcome_faults(evidence, task_id)
    for one in told:
        breaches += _client_faults(evidence, by_request, one)
    for attempt in attempts:
        breaches += _ledger_faults(evidence, attempt)
    counts = Counter(f"client {_heard(one)}" for one in told)
    counts["accepted tasks"] = len(evidence.accepted)
    counts["accepted without terminal"] = sum(t not in evidence.terminals for t in evidence.accepted)
    counts["outcome not success"] = sum(
        evidence.terminals[t][0][0] != "TaskSucceeded" for t in evidence.accepted if t in evidence.terminals
    )
    counts["tasks with more than one terminal record"] = sum(len(v) > 1 for v in evidence.terminals.values())
    counts["attempts seen by the model server"] = len(attempts)
    counts["attempts under 50 ms"] = sum((a.seconds or 0) < UNHEARD_S for a in attempts)
    counts["ledger rows"] = len(evidence.ledger)
    counts |= Counter(f"ledger {row['state']}/{row['verdict']}" for row in evidence.ledger.values())
    return Verdict(dict(sorted(counts.items())), tuple(breaches))


def _heard(one: Told) -> str:
    if one.complete:
        return "answered"
    return f"status {one.status}" if one.status else "connection broke"


def _outcome_faults(evidence: Evidence, task_id: str) -> list[str]:
    terminals = evidence.terminals.get(task_id)
    if not terminals:
        return [f"task {task_id}: accepted, and no terminal record"]
    row = evidence.tasks.get(task_id)
    if row is None:
        return [f"task {task_id}: {terminals[0][0]} in the log, and no row"]
    expected = {"TaskSucceeded": "succeeded", "TaskFailed": "failed", "TaskClosed": "closed"}[terminals[0][0]]
    if row["state"] != expected:
        return [f"task {task_id}: the log's first terminal is {terminals[0][0]}, its row says {row['state']}"]
    return []


def _client_faults(evidence: Evidence, by_request: dict[str, str], one: Told) -> list[str]:
    if not one.complete:
        return []
    task_id = by_request.get(one.request_id)
    terminals = evidence.terminals.get(task_id or "", [])
    if not terminals or terminals[0][0] != "TaskSucceeded":
        return [f"request {one.request_id}: answered, but the log's outcome is {terminals[:1]}"]
    answer = terminals[0][1]["answer"].get("inline")
    if answer is not None and answer["choices"][0]["message"]["content"] != one.text:
        return [f"request {one.request_id}: the client read another text than the outcome's"]
    return []


def _ledger_faults(evidence: Evidence, attempt: AttemptRecord) -> list[str]:
    row = evidence.ledger.get(attempt.attempt or "")
    if row is None:
        if (attempt.seconds or 0) < UNHEARD_S:
            return []
        return [f"attempt {attempt.attempt}: {attempt.seconds:.3f} s at the model server, and no ledger row"]
    if row["state"] == "open":
        return [f"attempt {attempt.attempt}: ended at the model server, still open in the ledger"]
    whole = attempt.outcome == "ok" and row["verdict"] == "outcome"
    if whole and row["output_tokens"] != attempt.tokens_out:
        said = row["output_tokens"]
        return [f"attempt {attempt.attempt}: {attempt.tokens_out} tokens sent, {said} in the ledger"]
    return []
