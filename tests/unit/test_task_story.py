"""Where a task is: the strongest witness is believed."""

from __future__ import annotations

from typing import Any

from schemas.fleet_messages import WorkerBeat
from services.core.task_story import LanePlace, story

BEAT = WorkerBeat(sent_ms=1, worker="w1", pool="a", state="ready", slots=1, in_flight=1)
OPEN: dict[str, Any] = {"state": "open", "verdict": None, "cost_usd": 0.0}
PARKED: dict[str, Any] = {"state": "parked", "due_ms": 9, "holder": None, "lane": "t.tasks.a.batch"}
WAITS = LanePlace("t.tasks.a.batch", 1, 7, done=False)
DONE = LanePlace("t.tasks.a.batch", 1, 7, done=True)


def test_the_outcome_stands_whatever_else_is_said() -> None:
    ended = {"state": "closed", "reason": "poison"}
    assert story(ended, [OPEN], PARKED, [BEAT], [WAITS]).where == "ended: closed (poison)"


def test_what_runs_is_said_before_what_is_parked_and_that_before_what_waits() -> None:
    assert story(None, [OPEN], PARKED, [BEAT], [WAITS]).where == "running at w1"
    assert story(None, [OPEN], PARKED, [], [WAITS]).where.startswith("parked until 9")
    assert story(None, [OPEN], {**PARKED, "state": "swept"}, [], [WAITS]).where.startswith("waiting on")
    assert story(None, [OPEN], None, [], [DONE]).where.startswith("tried by a worker")
    assert story(None, [], None, [], [DONE]).where.startswith("done with on its lane")
    assert story(None, [], None, [], []).where == "unknown"


def test_the_tenant_pays_for_outcome_and_billed_failures_and_the_rest_is_waste() -> None:
    rows = [
        {"state": "ended", "verdict": verdict, "cost_usd": cost}
        for verdict, cost in (("outcome", 1.0), ("failed", 2.0), ("waste", 4.0), ("lost", 8.0))
    ]
    told = story({"state": "succeeded", "reason": None}, rows, None, [], [])
    assert (told.charged_usd, told.waste_usd) == (3.0, 12.0)
