"""Records that no task comes of, as they are put aside: with where they stood and why.

Law: whatever could be read can be put aside. A record that came compressed may be larger than any that we can
write; what could not be put aside would hold its partition for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from schemas.headers import WireHeaders, to_wire
from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.ports import BlobStore, InRecord, OutRecord

log = structlog.get_logger(__name__)
_LONGEST_REASON = 1024
_LONGEST_KEY = 64 * 1024
_MOST_HEADERS_BYTES = 64 * 1024
_STORED_WITHIN_S = 30.0


def dead_record(record: InRecord, names: TopicNames, reason: str, tries: int = 0) -> OutRecord:
    """For `tasks.dead`: the original bytes and headers, the reason, the tries, and where the record stood.

    A key or headers that fit no record are cut: `dead_key_bytes` says how long it was, `dead_headers` how
    many they were. For a value see `fitted`.
    """
    headers, key = _first_headers(record), record.key
    own = {
        "dead_reason": reason[:_LONGEST_REASON],
        "dead_tries": str(tries),
        "dead_origin_topic": record.topic,
        "dead_origin_partition": str(record.partition),
        "dead_origin_offset": str(record.offset),
    }
    if len(headers) < len(record.headers):
        own["dead_headers"] = str(len(record.headers))
    if key is not None and len(key) > _LONGEST_KEY:
        own["dead_key_bytes"] = str(len(key))
        key = key[:_LONGEST_KEY]
    return OutRecord(names.dead, key, _some_value(record), headers + to_wire(own))


async def fitted(record: OutRecord, blobs: BlobStore) -> OutRecord:
    """A dead letter as its topic takes it. One that is too large has its whole value in the blob store:
    `dead_claim` is the claim as JSON, `dead_value_bytes` the value's length, and what fits of it stays.

    Where the store does not take it, `dead_claim_fault` says why, and the rest of the value is gone.
    """
    if record.size_bytes() <= MAX_RECORD_BYTES:
        return record
    value = record.value or b""
    said = {"dead_value_bytes": str(len(value))}
    try:
        async with asyncio.timeout(_STORED_WITHIN_S):
            key, sha256 = await blobs.put(value)
        said["dead_claim"] = Claim(key=key, sha256=sha256, size=len(value)).model_dump_json()
    except OSError as fault:  # a TimeoutError is one
        said["dead_claim_fault"] = f"{type(fault).__name__}: {fault.strerror or 'not stored in time'}"
        log.error("a dead letter's value is cut, the store does not take it", fault=str(fault))
    headers = [*record.headers, *to_wire(said)]
    around = replace(record, value=None, headers=headers).size_bytes()
    return replace(record, value=value[: MAX_RECORD_BYTES - around], headers=headers)


def kept_record(record: InRecord, names: TopicNames, result_partition: int | None) -> OutRecord:
    """Bytes of a newer version go to `results` as they are: the bookkeeper stores them in `kept`, and sends
    them back to the topic they came from once its version can read them.

    What does not fit there goes to `tasks.dead`.
    """
    origin = {
        "kept_origin_topic": record.topic,
        "kept_origin_partition": str(record.partition),
        "kept_origin_offset": str(record.offset),
    }
    headers = [*record.headers, *to_wire(origin)]
    made = OutRecord(names.results, record.key, _some_value(record), headers, result_partition)
    if made.size_bytes() <= MAX_RECORD_BYTES:
        return made
    return dead_record(record, names, "of a newer version, and too large to be kept for it")


def _first_headers(record: InRecord) -> WireHeaders:
    headers, room = list[tuple[str, bytes]](), _MOST_HEADERS_BYTES
    for name, value in record.headers:
        room -= len(name.encode()) + len(value)
        if room < 0:
            break
        headers.append((name, value))
    return headers


def _some_value(record: InRecord) -> bytes | None:
    """Kafka wants a key or a value."""
    return b"" if record.key is None and record.value is None else record.value
