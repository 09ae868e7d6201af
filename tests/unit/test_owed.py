"""What the bookkeeper owes to the bus is sent, whatever the topics take."""

from __future__ import annotations

from pathlib import Path

from schemas.headers import to_text
from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.core.life.rows import SendDead
from services.orchestrator.owed import Owed, send_each
from services.ports import OutRecord
from services.runtime.set_aside import fitted
from tests.fakes.bus import FakeBus, FakePublisher
from tests.life_records import envelope_of

NAMES = TopicNames("t.")


def test_a_task_that_only_its_row_held_is_buried_as_a_worker_buries_it() -> None:
    envelope = envelope_of("task")
    made = Owed(NAMES).record(SendDead("task", envelope, "poison"))
    assert (made.topic, made.key, made.value) == (NAMES.dead, b"task", envelope.value.encode())
    assert to_text(made.headers) == dict(envelope.headers) | {
        "dead_reason": "poison",
        "dead_tries": "1",
        "dead_origin_topic": envelope.lane,
        "dead_origin_partition": "-1",
        "dead_origin_offset": "-1",
    }


async def test_a_record_that_its_topic_never_takes_goes_to_the_dead_and_holds_up_nothing(
    tmp_path: Path,
) -> None:
    async def instead(record: OutRecord, reason: str) -> OutRecord:
        return await fitted(Owed(NAMES).unsent(record, reason), DirectoryBlobStore(tmp_path))

    bus = FakeBus({NAMES.submissions: 1, NAMES.dead: 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    records = [
        OutRecord(NAMES.submissions, b"k", b"x" * MAX_RECORD_BYTES, [("type", b"SubmitTask")]),
        OutRecord(NAMES.submissions, b"k", b"small"),
    ]
    assert await send_each(publisher, records, timeout_s=1, instead=instead) == []
    assert [record.value for record in bus.records(NAMES.submissions)] == [b"small"]
    (dead,) = bus.records(NAMES.dead)
    said = to_text(dead.headers)
    assert (said["type"], said["dead_origin_topic"]) == ("SubmitTask", NAMES.submissions)
    assert said["dead_value_bytes"] == str(MAX_RECORD_BYTES)
