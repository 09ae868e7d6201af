"""Records that no task comes of, as they are put aside: with where they stood and why.

Law: whatever could be read can be put aside. A record that came compressed may be larger than any that we can
write; what could not be put aside would hold its partition for ever.
"""

from __future__ import annotations

from dataclasses import replace

from schemas.headers import WireHeaders, to_wire
from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.ports import InRecord, OutRecord

_LONGEST_REASON = 1024
_LONGEST_KEY = 64 * 1024
_MOST_HEADERS_BYTES = 64 * 1024


def dead_record(record: InRecord, names: TopicNames, reason: str, tries: int = 0) -> OutRecord:
    """For `tasks.dead`: the original bytes and headers, the reason, the tries, and where the record stood.

    Where they do not fit, they are cut: `dead_value_bytes` and `dead_key_bytes` say how long they were,
    `dead_headers` how many.
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
    made = OutRecord(names.dead, key, _some_value(record), headers + to_wire(own))
    return made if made.size_bytes() <= MAX_RECORD_BYTES else _cut(made, record.value or b"")


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


def _cut(made: OutRecord, value: bytes) -> OutRecord:
    headers = [*made.headers, *to_wire({"dead_value_bytes": str(len(value))})]
    around = replace(made, value=None, headers=headers).size_bytes()
    return replace(made, value=value[: MAX_RECORD_BYTES - around], headers=headers)


def _some_value(record: InRecord) -> bytes | None:
    """Kafka wants a key or a value."""
    return b"" if record.key is None and record.value is None else record.value
