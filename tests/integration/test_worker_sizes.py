"""Records at the limit of what a topic takes: a task is parked or ended, never sent for ever (CASES Q4)."""

from __future__ import annotations

import orjson

from schemas.failures import FailureKind
from schemas.headers import to_text
from schemas.messages import TaskFailed, TaskParked
from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES
from tests.integration.worker_rig import NAMES, POOL, WorkerRig, text_of, tries, until

# Two bytes each in the lane record, four in an envelope: the lane record is as large as one may be.
QUOTES = '"' * 261_800


def quoting(*scripts: dict[str, object]) -> dict[str, object]:
    return tries("quotes", *scripts) | {"messages": [{"role": "user", "content": QUOTES}]}


async def test_an_envelope_that_would_not_fit_has_its_body_claimed(rig: WorkerRig) -> None:
    await rig.work()
    task_id = await rig.submit(quoting({"status": 429, "retry_after": 3}, {"text": "after all"}))
    parked = await rig.failed_try(task_id)
    assert parked.next == "parked"
    assert parked.envelope is not None
    claim = orjson.loads(parked.envelope.value)["body"]["claim"]
    body = orjson.loads(await rig.blobs.get(claim["key"], claim["sha256"]))
    assert body["messages"][0]["content"] == QUOTES
    await rig.commits_reach(1)
    # what the sweep puts back is the same task
    headers = parked.envelope.headers | {"not_before": "0"}
    wire = [(name, text.encode()) for name, text in headers.items()]
    await rig.raw(task_id.encode(), parked.envelope.value.encode(), wire)
    assert text_of(await rig.answer(task_id)) == "after all"


async def test_a_try_of_such_a_task_is_handed_over_too(rig: WorkerRig) -> None:
    await rig.work()
    task_id = await rig.submit(quoting({"hang_after_chunks": 1}))
    await rig.started(task_id)
    await rig.bus.rebalance(NAMES.lane_group(POOL.name, "interactive"))
    (parked,) = await until(lambda: rig.of(TaskParked, task_id))
    assert orjson.loads(parked.envelope.value)["body"].keys() == {"claim"}
    await rig.commits_reach(1)
    await rig.cancel(task_id)
    assert (await rig.failed_try(task_id)).next == "closed"


async def test_a_newer_record_that_cannot_be_kept_ends_its_task(rig: WorkerRig) -> None:
    await rig.work()
    headers = [("type", b"RunTask"), ("v", b"2"), ("result_partition", b"1")]
    await rig.raw(b"newer", b"x" * (MAX_RECORD_BYTES - 200), headers)
    end = await rig.end("newer")
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.UNDECODABLE
    (dead,) = rig.dead()
    claim = Claim.model_validate_json(to_text(dead.headers)["dead_claim"])
    assert await rig.blobs.get(claim.key, claim.sha256) == b"x" * (MAX_RECORD_BYTES - 200)
    await rig.commits_reach(1)


async def test_headers_that_fit_no_answer_end_a_task_at_once(rig: WorkerRig) -> None:
    await rig.work()
    task_id = await rig.submit(headers={"request_id": "r" * 900_000})
    end = await rig.end(task_id)
    assert isinstance(end, TaskFailed)
    assert end.failure.kind is FailureKind.UNDECODABLE
    await rig.commits_reach(1)
