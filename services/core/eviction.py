"""Which running batch task gives its slot to interactive work, if any, and when to ask again.

Law: nothing is evicted for more than what waits beyond the slots that are free or being freed; a task that
was evicted as often as the law allows, that a client has content of, or that is about to end, runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvictionLaw:
    """wait_s: what interactive work may wait; ending_s: what ends so soon is waited for, and not evicted."""

    wait_s: float = 0.05
    most_evictions: int = 3
    ending_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Waiting:
    """Interactive work without a slot. Seconds on the caller's clock; `needs_s` is its predicted service."""

    task_id: str
    since_s: float
    deadline_s: float
    needs_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """What has a slot. `content`: a streaming client may have some of it. `lent`: a parked row holds it, so
    that it cannot wait here. `fixed`: it has no attempt yet, or is being ended already.

    rest_s: predicted seconds to its end, however rough.
    """

    task_id: str
    priority: str
    started_s: float
    rest_s: float
    evictions: int = 0
    content: bool = False
    lent: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Evict:
    """End `victim` now; its slot is for `task_id`."""

    victim: str
    task_id: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Nothing now; what waits may be due at `at_s`."""

    at_s: float


def decide(
    candidates: Sequence[Waiting],
    waiting: int,
    running: Sequence[Running],
    coming: int,
    law: EvictionLaw,
    now_s: float,
) -> Evict | AskAgain | None:
    """`candidates`: who would start next, and who must start soonest; `waiting`: how many wait in all;
    `coming`: slots that are free or being freed.
    """
    if not candidates or waiting <= coming:
        return None
    victim = least_lost(running, law)
    if victim is None:
        return None
    rests = sorted(each.rest_s for each in running)
    dues = []
    for place, task in enumerate(candidates):
        slot_s = now_s + rests[min(place, len(rests) - 1)]
        if _would_be_late(task, slot_s, now_s):
            return Evict(victim.task_id, task.task_id)
        dues.append(max(task.since_s + law.wait_s, slot_s if slot_s - now_s <= law.ending_s else now_s))
    due_s, first = dues[0], candidates[0]
    if due_s <= now_s:
        return Evict(victim.task_id, first.task_id)
    return AskAgain(due_s)


def least_lost(running: Iterable[Running], law: EvictionLaw) -> Running | None:
    """Of the batch tasks that may be evicted the youngest, with which the least work is lost."""
    evictable = [each for each in running if _evictable(each, law)]
    return max(evictable, key=lambda each: each.started_s, default=None)


def _evictable(task: Running, law: EvictionLaw) -> bool:
    if task.priority != "batch" or task.content or task.lent or task.fixed:
        return False
    return task.evictions < law.most_evictions and task.rest_s > law.ending_s


def _would_be_late(task: Waiting, slot_s: float, now_s: float) -> bool:
    """It would meet its deadline if it started now, and not if it waits for the slot that comes next."""
    return now_s + task.needs_s <= task.deadline_s < slot_s + task.needs_s
