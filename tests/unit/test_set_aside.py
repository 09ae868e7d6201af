"""Whatever stood on a topic can be put aside: else it would hold its partition for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.adapters.blobs import DirectoryBlobStore
from services.ports import InRecord
from services.runtime.set_aside import dead_record, fitted, kept_record

NAMES = TopicNames("t.")


def record(key: bytes | None, value: bytes | None, **headers: bytes) -> InRecord:
    return InRecord("t.tasks.chat.batch", 3, 17, 1_000, key, value, tuple(headers.items()))


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
async def test_what_no_record_of_ours_can_carry_is_whole_in_the_blob_store(
    value_bytes: int, tmp_path: Path
) -> None:
    value, blobs = b"x" * value_bytes, DirectoryBlobStore(tmp_path)
    dead = dead_record(record(b"key", value, more=b"h" * 2_000), NAMES, "too large" * 5_000)
    made = await fitted(dead, blobs)
    assert made.size_bytes() == MAX_RECORD_BYTES
    assert made.value is not None
    assert value.startswith(made.value)
    said = dict(made.headers)
    assert said["dead_value_bytes"] == str(value_bytes).encode()
    claim = Claim.model_validate_json(said["dead_claim"])
    assert claim.size == value_bytes
    assert await blobs.get(claim.key, claim.sha256) == value


async def test_without_a_blob_store_the_cut_stays_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    dead = dead_record(record(b"key", b"x" * 2 * MAX_RECORD_BYTES), NAMES, "why")
    made = await fitted(dead, DirectoryBlobStore(tmp_path / "file"))
    assert made.size_bytes() == MAX_RECORD_BYTES
    said = dict(made.headers)
    assert said["dead_value_bytes"] == str(2 * MAX_RECORD_BYTES).encode()
    assert said["dead_claim_fault"] == b"NotADirectoryError: Not a directory"
    assert "dead_claim" not in said


async def test_what_fits_is_left_as_it_is(tmp_path: Path) -> None:
    made = dead_record(record(b"key", b"\xff\xfe"), NAMES, "why")
    assert await fitted(made, DirectoryBlobStore(tmp_path)) is made
    assert list(tmp_path.iterdir()) == []


MANY = {f"header-{number}": b"h" * 1_000 for number in range(2_000)}


@pytest.mark.parametrize("value_bytes", [1, 2 * MAX_RECORD_BYTES])
async def test_a_key_and_headers_that_fit_no_record_are_cut_and_say_so(
    value_bytes: int, tmp_path: Path
) -> None:
    dead = dead_record(record(b"k" * 2 * MAX_RECORD_BYTES, b"x" * value_bytes, **MANY), NAMES, "why")
    made = await fitted(dead, DirectoryBlobStore(tmp_path))
    assert made.size_bytes() <= MAX_RECORD_BYTES
    said = dict(made.headers)
    assert (said["dead_headers"], said["header-0"]) == (b"2000", b"h" * 1_000)
    assert said["dead_key_bytes"] == str(2 * MAX_RECORD_BYTES).encode()
    assert ("dead_value_bytes" in said) == (value_bytes > 1)


def test_what_is_too_large_to_be_kept_is_dead() -> None:
    newer = record(b"key", b"x" * (MAX_RECORD_BYTES - 200), type=b"RunTask", v=b"2")
    made = kept_record(newer, NAMES, 1)
    assert made.topic == NAMES.dead
    assert b"too large to be kept" in dict(made.headers)["dead_reason"]


def test_a_record_without_key_and_value_can_be_written_too() -> None:
    for made in (dead_record(record(None, None), NAMES, "no key"), kept_record(record(None, None), NAMES, 1)):
        assert (made.key, made.value) == (None, b"")
