"""Two pools in front of one model server: where their tasks went, and who tried them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from schemas.headers import TaskHeaders, to_text
from schemas.messages import AttemptFailed, AttemptStarted, TaskSucceeded
from services.core.fleet import Pool
from tests.integration.worker_rig import NAMES, POOL, WorkerRig

SPARE = replace(POOL, name="spare", model="spare-1", external=True)
QUICK: dict[str, Any] = {"beat_s": 0.1, "adopt_after_s": 0.4, "adopt_look_s": 0.1}


def spare(rig: WorkerRig) -> Pool:
    return rig.fleet.pools[1]


def moved(rig: WorkerRig, pool: str) -> list[TaskHeaders]:
    """Headers of what was moved to the interactive lane of a pool."""
    records = rig.bus.records(NAMES.lane(pool, "interactive"))
    headers = [TaskHeaders.from_text(to_text(record.headers)) for record in records]
    return [one for one in headers if one.hops]


async def pools_of(rig: WorkerRig, tasks: list[str]) -> Counter[str]:
    ends = [await rig.end(task_id) for task_id in tasks]
    assert all(isinstance(end, TaskSucceeded) for end in ends), ends
    return Counter(end.run.pool for end in ends if end.run is not None)


def runs(rig: WorkerRig, task_id: str) -> list[str]:
    """Who tried it."""
    started = [m.run for m in rig.results(task_id) if isinstance(m, AttemptStarted)]
    ended = [m.run for m in rig.results(task_id) if isinstance(m, TaskSucceeded | AttemptFailed)]
    return list(dict.fromkeys(run.attempt for run in started + ended))
