"""Records that no task comes of, as they are put aside: with where they stood and why."""

from __future__ import annotations

from schemas.topics import MAX_RECORD_BYTES, TopicNames
from services.ports import InRecord, OutRecord

_LONGEST_REASON = 1024
_ROOM_BYTES = 4096  # for what is added, and for what Kafka writes around a record


def dead_record(record: InRecord, names: TopicNames, reason: str, tries: int = 0) -> OutRecord:
    """For `tasks.dead`: the original bytes and headers, the reason, the tries, and where the record stood.

    A value that came compressed may be larger than any record we can write. It is cut, and `dead_value_bytes`
    says how long it was: one that could not be put aside would hold its partition for ever.
    """
    own = {
        "dead_reason": reason[:_LONGEST_REASON],
        "dead_tries": str(tries),
        "dead_origin_topic": record.topic,
        "dead_origin_partition": str(record.partition),
        "dead_origin_offset": str(record.offset),
    }
    value = _some_value(record)
    rest = len(record.key or b"") + sum(len(name) + len(said) for name, said in record.headers)
    room = max(0, MAX_RECORD_BYTES - _ROOM_BYTES - rest)
    if value is not None and len(value) > room:
        own["dead_value_bytes"] = str(len(value))
        value = value[:room]
    headers = [*record.headers, *((name, text.encode()) for name, text in own.items())]
    return OutRecord(names.dead, record.key, value, headers)


def kept_record(record: InRecord, names: TopicNames, result_partition: int | None) -> OutRecord:
    """Bytes of a newer version go to `results` as they are: the bookkeeper stores them in `kept`, and sends
    them back to the topic they came from once its version can read them."""
    origin = {
        "kept_origin_topic": record.topic,
        "kept_origin_partition": str(record.partition),
        "kept_origin_offset": str(record.offset),
    }
    headers = [*record.headers, *((name, text.encode()) for name, text in origin.items())]
    return OutRecord(names.results, record.key, _some_value(record), headers, result_partition)


def _some_value(record: InRecord) -> bytes | None:
    """Kafka wants a key or a value."""
    return b"" if record.key is None and record.value is None else record.value
