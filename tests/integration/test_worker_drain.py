"""A drain meets tries that fail: the task leaves with what is known of it (CASES Q8)."""

from __future__ import annotations

from schemas.messages import AttemptFailed
from tests.integration.worker_rig import WorkerRig, tries


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
