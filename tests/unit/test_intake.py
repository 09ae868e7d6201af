"""What a lane record is before its value is read: which deadlines a task may have."""

from __future__ import annotations

import pytest

from schemas.headers import TaskHeaders
from schemas.topics import LONGEST_DEADLINE_MS
from services.ports import InRecord
from services.worker_pools.held import Held
from services.worker_pools.intake import Odd, read_record

WRITTEN_MS = 1_796_000_000_000


def read(deadline_ms: int, written_ms: int = WRITTEN_MS) -> Held | Odd:
    headers = TaskHeaders("r", deadline_ms, 1, not_before_ms=deadline_ms - 1).to_wire()
    record = InRecord("t.tasks.p.batch", 0, 5, written_ms, b"task", b"{}", tuple(headers))
    return read_record(record, "batch", partitions=4, max_bytes=1_000, redelivered=False)


@pytest.mark.parametrize("deadline_ms", [WRITTEN_MS * 1_000, 10**18 - 1])
def test_a_deadline_that_nobody_lives_to_see_is_a_dead_letter(deadline_ms: int) -> None:
    """Microseconds, say: the task would hold its offset for thousands of years."""
    odd = read(deadline_ms)
    assert isinstance(odd, Odd)
    assert (odd.fate, odd.task_id, odd.result_partition) == ("dead", "task", 1)
    assert "header deadline" in odd.reason


@pytest.mark.parametrize(
    ("deadline_ms", "written_ms"),
    [(WRITTEN_MS + LONGEST_DEADLINE_MS, WRITTEN_MS), (WRITTEN_MS - 1, WRITTEN_MS), (WRITTEN_MS, -1)],
)
def test_any_other_is_a_task(deadline_ms: int, written_ms: int) -> None:
    """One that is past ends as such; a record without a time says nothing of its own."""
    assert isinstance(read(deadline_ms, written_ms), Held)
