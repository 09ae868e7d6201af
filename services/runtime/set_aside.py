"""Records that no task comes of, as they are put aside: whole, with where they stood and why."""

from __future__ import annotations

from schemas.topics import TopicNames
from services.ports import InRecord, OutRecord


def dead_record(record: InRecord, names: TopicNames, reason: str, tries: int = 0) -> OutRecord:
    """For `tasks.dead`: the original bytes and headers, the reason, the tries, and where the record stood."""
    own = {
        "dead_reason": reason,
        "dead_tries": str(tries),
        "dead_origin_topic": record.topic,
        "dead_origin_partition": str(record.partition),
        "dead_origin_offset": str(record.offset),
    }
    headers = [*record.headers, *((name, text.encode()) for name, text in own.items())]
    value = b"" if record.key is None and record.value is None else record.value  # Kafka wants one of them
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
    value = b"" if record.key is None and record.value is None else record.value
    return OutRecord(names.results, record.key, value, headers, result_partition)
