"""Whatever stood on a topic can be put aside: else it would hold its partition for ever."""

from __future__ import annotations

import pytest

from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.ports import InRecord, OutRecord
from services.runtime.set_aside import dead_record, kept_record

NAMES = TopicNames("t.")


def record(key: bytes | None, value: bytes | None, **headers: bytes) -> InRecord:
    return InRecord("t.tasks.chat.batch", 3, 17, 1_000, key, value, tuple(headers.items()))


def size(made: OutRecord) -> int:
    parts = [made.key or b"", made.value or b"", *(name.encode() + text for name, text in made.headers)]
    return sum(map(len, parts))


def test_the_original_is_whole_with_where_it_stood() -> None:
    made = dead_record(record(b"key", b"\xff\xfe", type=b"?"), NAMES, "why", tries=2)
    assert (made.topic, made.key, made.value) == (NAMES.dead, b"key", b"\xff\xfe")
    assert dict(made.headers) == {
        "type": b"?",
        "dead_reason": b"why",
        "dead_tries": b"2",
        "dead_origin_topic": b"t.tasks.chat.batch",
        "dead_origin_partition": b"3",
        "dead_origin_offset": b"17",
    }


@pytest.mark.parametrize("value_bytes", [MAX_RECORD_BYTES - 200, 5 * MAX_RECORD_BYTES])
def test_what_no_record_of_ours_can_carry_is_cut_and_says_so(value_bytes: int) -> None:
    made = dead_record(record(b"key", b"x" * value_bytes, more=b"h" * 2_000), NAMES, "too large" * 5_000)
    assert size(made) < MAX_RECORD_BYTES
    assert dict(made.headers)["dead_value_bytes"] == str(value_bytes).encode()


def test_a_record_without_key_and_value_can_be_written_too() -> None:
    for made in (dead_record(record(None, None), NAMES, "no key"), kept_record(record(None, None), NAMES, 1)):
        assert (made.key, made.value) == (None, b"")
