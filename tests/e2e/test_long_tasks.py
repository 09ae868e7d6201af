"""Q2 with every timer of ours divided by 60: a task of half an hour beside two rebalances, on real Kafka."""

from __future__ import annotations

import pytest

from loadtest.long_task.run import LongOptions, run_long

SCALE = 1 / 60
MINUTES = 36  # half an hour, and what a worker needs to start: that is not scaled


@pytest.mark.usefixtures("kafka_possible")
async def test_q2_a_long_task_is_tried_once_beside_two_rebalances() -> None:
    """What Kafka is told is not scaled: a session of 6 s is the least that a broker takes."""
    report = await run_long(LongOptions(MINUTES * 60 * SCALE, 2.0, SCALE), print)
    assert report.breaches() == [], report.lines()
