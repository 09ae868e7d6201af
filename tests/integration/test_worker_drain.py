"""A drain meets tries that fail: the task leaves with what is known of it (CASES Q8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtest.model_server.process import ModelServerProcess
from schemas.messages import AttemptFailed
from tests.integration.worker_rig import WorkerRig, openai_rig, tries


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[WorkerRig]:
    async with ModelServerProcess(chunks=4) as server, openai_rig(server.root_url, tmp_path) as made:
        yield made


async def test_a_retry_that_would_start_after_the_drain_is_parked(rig: WorkerRig) -> None:
    """A lane record that comes again knows nothing of the try that is charged."""
    running = await rig.work()
    task_id = await rig.submit(tries("drained", {"delay_s": 0.5, "status": 500}, {"text": "again"}))
    await rig.started(task_id)
    await running.stop()
    (failed,) = rig.of(AttemptFailed, task_id)
    assert (failed.next, failed.charged) == ("parked", True)
    assert failed.envelope is not None
    assert failed.envelope.headers["tries"] == "1"
    assert failed.envelope.headers["not_before"] == str(failed.due_ms)
    assert rig.committed() == 1
