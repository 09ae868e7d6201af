"""Where a task is and what it cost, from what the rows, the fleet and the lanes say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.fleet_messages import WorkerBeat
from services.core.life.table import ParkedState, Verdict

_TENANTS = (Verdict.OUTCOME.value, Verdict.FAILED.value)
_HOLDS = (ParkedState.PARKED.value, ParkedState.SWEEPING.value)


@dataclass(frozen=True, slots=True)
class LanePlace:
    """A lane record of the task. `done`: below what its group has committed."""

    lane: str
    partition: int
    offset: int
    done: bool


@dataclass(frozen=True, slots=True)
class Story:
    """`where`: one sentence. Costs in USD: what the tenant pays, and what was for nothing."""

    where: str
    charged_usd: float
    waste_usd: float


def story(
    outcome: Mapping[str, Any] | None,
    attempts: Sequence[Mapping[str, Any]],
    parked: Mapping[str, Any] | None,
    workers: Sequence[WorkerBeat],
    lanes: Sequence[LanePlace],
) -> Story:
    """The first of these that holds: ended, running, parked, tried and not ended, on a lane, unknown."""
    paid = sum(row["cost_usd"] for row in attempts if row["verdict"] in _TENANTS)
    spent = sum(row["cost_usd"] for row in attempts)
    return Story(_where(outcome, attempts, parked, workers, lanes), paid, spent - paid)


def _where(
    outcome: Mapping[str, Any] | None,
    attempts: Sequence[Mapping[str, Any]],
    parked: Mapping[str, Any] | None,
    workers: Sequence[WorkerBeat],
    lanes: Sequence[LanePlace],
) -> str:
    if outcome is not None:
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        return f"ended: {outcome['state']}{reason}"
    if workers:
        return f"running at {', '.join(beat.worker for beat in workers)}"
    if parked is not None and parked["state"] in _HOLDS:
        holder = f", held by {parked['holder']}" if parked["holder"] else ""
        return f"parked until {parked['due_ms']} (ms since the epoch){holder}, for {parked['lane']}"
    waiting = [place for place in lanes if not place.done]
    if waiting:
        place = waiting[-1]
        return f"waiting on {place.lane}, partition {place.partition}, offset {place.offset}"
    if any(row["state"] == "open" for row in attempts):
        return "tried by a worker that is not heard of now"
    if lanes:
        return "done with on its lane; its outcome is not booked yet"
    return "unknown"
