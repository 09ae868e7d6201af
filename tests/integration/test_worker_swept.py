"""What a worker makes of a record that the sweep put back on its lane (CASES Q1, R1)."""

from __future__ import annotations

from schemas.messages import AttemptStarted
from tests.integration.worker_rig import WorkerRig, text_of, tries


async def test_a_swept_record_says_before_its_try_that_an_earlier_one_may_be_lost(rig: WorkerRig) -> None:
    """Else a task that kills whoever holds it by a row would count no lost try, and never be poison."""
    await rig.work()
    # parked, for it is longer than a worker waits; and the only backend rests for as long before "again"
    task_id = await rig.submit(tries("swept", {"status": 429, "retry_after": 2.5}, {"text": "again"}))
    parked = await rig.failed_try(task_id)
    assert parked.envelope is not None
    headers = parked.envelope.headers | {"not_before": "0", "swept": "1"}
    wire = [(name, text.encode()) for name, text in headers.items()]
    await rig.raw(task_id.encode(), parked.envelope.value.encode(), wire)
    assert text_of(await rig.answer(task_id)) == "again"
    end, last_started = await rig.end(task_id), rig.results(task_id)[-2]
    assert isinstance(last_started, AttemptStarted)
    assert last_started.redelivered
    assert end.run is not None
    assert last_started.run.attempt == end.run.attempt
