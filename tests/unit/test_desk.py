"""Records of a task that is held: which of them are done with it, and which hold it next."""

from __future__ import annotations

import time

import pytest

from schemas.headers import TaskHeaders
from services.adapters.wall_clock import WallClock
from services.core.fleet import DEFAULT_WEIGHTS
from services.runtime.group_offsets import Place
from services.worker_pools.backlog import Backlog
from services.worker_pools.desk import Desk
from services.worker_pools.held import Held, Phase, Position

OLD, NEXT = Position("interactive", Place(0, 7, 1)), Position("interactive", Place(1, 9, 1))


def _record(at: Position, hops: int = 0) -> Held:
    headers = TaskHeaders("req", int(time.time() * 1000) + 60_000, 0, hops=hops)
    origin = (at.place.partition, at.place.offset)
    return Held("task", "interactive", "lane", headers, (), b"{}", 0, redelivered=False, origin=origin)


class _Taken:
    """A desk that holds the task by its first record, out of the queue."""

    def __init__(self, phase: Phase) -> None:
        self.done: list[Position] = []
        self.desk = Desk(Backlog(DEFAULT_WEIGHTS, 10, 1_000_000), WallClock(), self.done.append)
        self.held = _record(OLD)
        self.desk.take(self.held, OLD)
        self.desk.backlog.remove(self.held)
        self.held.phase = phase


@pytest.mark.parametrize("phase", [Phase.TRYING, Phase.SETTLING])
def test_both_records_of_a_task_are_done_when_it_ended(phase: Phase) -> None:
    taken = _Taken(phase)
    taken.desk.take(_record(NEXT, hops=1), NEXT)
    taken.desk.let_go(taken.held, ended=True)
    assert taken.done == [OLD, NEXT]
    assert len(taken.desk) == 0


def test_a_record_that_was_there_before_the_move_is_done_with_it() -> None:
    taken = _Taken(Phase.TRYING)
    taken.desk.take(_record(NEXT), NEXT)
    taken.held.phase = Phase.SETTLING
    taken.desk.let_go(taken.held, ended=False)
    assert taken.done == [OLD, NEXT]


def test_a_task_that_moved_to_its_own_worker_is_held_by_the_record_that_came() -> None:
    """The lane acknowledges after the record was read: done with the old one, nobody would hold the task."""
    taken = _Taken(Phase.SETTLING)
    successor = _record(NEXT, hops=1)
    taken.desk.take(successor, NEXT)
    taken.desk.let_go(taken.held, ended=False)
    assert taken.done == [OLD]
    assert taken.desk.get("task") is successor
    assert successor.phase is Phase.QUEUED
    assert successor.positions == [NEXT]


def test_what_came_while_an_end_was_written_is_done_with_a_task_that_stays() -> None:
    """It went back to the queue here; its next move is another one."""
    taken = _Taken(Phase.SETTLING)
    taken.desk.take(_record(NEXT), NEXT)
    taken.desk.backlog.push(taken.held, time.time())
    taken.desk.backlog.remove(taken.held)
    taken.held.phase = Phase.SETTLING
    taken.desk.let_go(taken.held, ended=False)
    assert taken.done == [OLD, NEXT]
