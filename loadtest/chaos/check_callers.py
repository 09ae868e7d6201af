"""What callers were told, and what the ingress noted of it, is what the log decided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from loadtest.chaos.evidence import EdgeLine, Evidence
from loadtest.chaos.law import SAYS_NOTHING, Breach, Decided, Outcome
from loadtest.chaos.words import heard
from loadtest.kills.client import Told

_SAME_MOMENT_S = 0.5


def caller_breaches(evidence: Evidence, decided: Decided) -> list[Breach]:
    lines: dict[str, list[EdgeLine]] = defaultdict(list)
    for line in evidence.edge:
        lines[line.request_id].append(line)
    found: list[Breach] = []
    for told in evidence.told:
        found += _text_breaches(told)
        found += _answer_breaches(evidence, decided, told)
        found += _line_breaches(evidence, decided, told, lines.get(told.request_id, []))
    return found + _key_breaches(evidence, decided)


def _text_breaches(told: Told) -> list[Breach]:
    """A stream, whole or broken off, is the beginning of one attempt's answer."""
    read = heard(told.text)
    if read.fault is not None:
        return [Breach("spliced", told.request_id, f"{read.fault}: {told.text[:400]!r}")]
    if told.complete and not read.whole:
        return [Breach("cut short", told.request_id, f"told success with {told.text[:400]!r}")]
    return []


def _answer_breaches(evidence: Evidence, decided: Decided, told: Told) -> list[Breach]:
    tasks = _tasks_of(evidence, decided, told)
    outcomes = decided.outcomes_of(tasks)
    if told.complete:
        return _success_breaches(told, outcomes)
    if told.code is not None:
        return _error_breaches(told, outcomes)
    if told.hung_up or _died(evidence, told):
        return []
    return [Breach("told nothing", told.request_id, f"status {told.status}, then the connection ended")]


def _tasks_of(evidence: Evidence, decided: Decided, told: Told) -> set[str]:
    """With a key, of all calls with it: whoever joins hears of another call's task."""
    if told.key is None:
        return decided.of_request(told.request_id)
    calls = (other.request_id for other in evidence.told if other.key == told.key)
    return set().union(*(decided.of_request(call) for call in calls))


def _success_breaches(told: Told, outcomes: Sequence[Outcome]) -> list[Breach]:
    won = [outcome for outcome in outcomes if outcome.state == "succeeded"]
    if not won:
        said = ", ".join(map(str, outcomes)) or "nothing"
        return [Breach("told another outcome", told.request_id, f"told success; the log says {said}")]
    if all(outcome.text != told.text for outcome in won):
        return [Breach("told another text", told.request_id, f"told {told.text!r}, the log {won[0].text!r}")]
    return []


def _error_breaches(told: Told, outcomes: Sequence[Outcome]) -> list[Breach]:
    code = str(told.code)
    if code in SAYS_NOTHING or any(code in outcome.told for outcome in outcomes):
        return []
    if code == "stream_interrupted" and any(_is_another(outcome, told) for outcome in outcomes):
        return []  # another attempt than the one that was followed has decided
    said = ", ".join(map(str, outcomes)) or "nothing"
    return [Breach("told another outcome", told.request_id, f"told {code} ({told.status}); the log: {said}")]


def _is_another(outcome: Outcome, told: Told) -> bool:
    followed = heard(told.text).attempt
    return None not in (followed, outcome.attempt) and followed != outcome.attempt


def _died(evidence: Evidence, told: Told) -> bool:
    """Whether the ingress that was asked died meanwhile, or was not there any more."""
    since_s = told.sent_s - _SAME_MOMENT_S if told.reached else 0.0
    return any(
        death.name == told.edge and since_s < death.at_s < told.ended_s + _SAME_MOMENT_S
        for death in evidence.deaths
    )


def _line_breaches(
    evidence: Evidence, decided: Decided, told: Told, lines: Sequence[EdgeLine]
) -> list[Breach]:
    if not lines:
        if told.status == 0 or _died(evidence, told):
            return []
        return [Breach("no line", told.request_id, f"told {told.status}, and the ingress noted nothing")]
    line = lines[-1]
    found = []
    if told.status and line.http_status != told.status:
        text = f"told {told.status}, the ingress noted {line.http_status}"
        found.append(Breach("ingress disagrees", told.request_id, text))
    outcome = decided.outcomes.get(line.task_id or "")
    if line.status == "ok" and line.reason != "replayed" and not _is_success_of(outcome, line):
        text = f"the ingress noted success of {line.attempt}, the log says {outcome}"
        found.append(Breach("ingress disagrees", told.request_id, text))
    if told.code is not None and line.reason != told.code and not told.hung_up:
        text = f"told {told.code}, the ingress noted {line.status} {line.reason}"
        found.append(Breach("ingress disagrees", told.request_id, text))
    return found


def _is_success_of(outcome: Outcome | None, line: EdgeLine) -> bool:
    return outcome is not None and outcome.state == "succeeded" and outcome.attempt == line.attempt


def _key_breaches(evidence: Evidence, decided: Decided) -> list[Breach]:
    """A key has one success, and everybody hears that one."""
    by_key: dict[str, list[Told]] = defaultdict(list)
    for told in evidence.told:
        if told.key is not None:
            by_key[told.key].append(told)
    found = []
    for key, calls in by_key.items():
        tasks = set().union(*(decided.of_request(told.request_id) for told in calls))
        won = [task for task in sorted(tasks) if _succeeded(decided, task)]
        if len(won) > 1:
            found.append(Breach("key ran twice", key, f"{len(won)} of its tasks succeeded: {won}"))
    return found


def _succeeded(decided: Decided, task: str) -> bool:
    return task in decided.outcomes and decided.outcomes[task].state == "succeeded"
