"""What a lane record is before its value is read: a task to hold, or a record that no task comes of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.codec import MAJOR, MESSAGE_TYPES
from schemas.headers import SWEPT, HeaderError, TaskHeaders, to_text
from schemas.topics import DURABLE_RETENTION_MS, LONGEST_DEADLINE_MS
from services.ports import InRecord
from services.worker_pools.held import Held

_LONGEST_TEXT = 4_096  # characters of a header


@dataclass(frozen=True, slots=True)
class Odd:
    """`dead`: bytes that are not what they say. `kept`: a type or major that only a newer version knows.

    `task_id` and `result_partition` as far as they could be read.
    """

    fate: Literal["dead", "kept"]
    record: InRecord
    reason: str
    task_id: str | None
    result_partition: int | None
    tries: int = 0


def task_id_of(record: InRecord) -> str | None:
    """The record's key, if it can be the id of a task."""
    if not record.key or len(record.key) > 128:
        return None
    try:
        return record.key.decode("utf-8")
    except UnicodeDecodeError:
        return None


def read_record(
    record: InRecord, priority: str, *, partitions: int, max_bytes: int, redelivered: bool
) -> Held | Odd:
    """`partitions`: how many `results` and `replies` have. Who names another one can't be answered."""
    text = to_text(record.headers)
    task_id = task_id_of(record)
    name, major = text.get("type", ""), text.get("v", "")
    if name and (name != "RunTask" or major != str(MAJOR)):
        fate: Literal["dead", "kept"] = "dead" if _known_elsewhere(name, major) else "kept"
        reason = f"header type: {name[:64]!r} version {major[:64]!r} on a lane"
        return _odd(fate, record, text, task_id, reason, partitions)
    try:
        if not name:
            raise HeaderError("header type: missing, expected RunTask")
        headers = TaskHeaders.from_text(text)
        _check(headers, partitions)
        _check_deadline(headers, record)
    except HeaderError as fault:
        return _odd("dead", record, text, task_id, str(fault), partitions)
    if task_id is None:
        return _odd("dead", record, text, None, "key: expected the task_id", partitions)
    if record.value is None or len(record.value) > max_bytes:
        reason = "no value" if record.value is None else f"more than {max_bytes} bytes: use a claim"
        return _odd("dead", record, text, task_id, f"RunTask: {reason}", partitions)
    return Held(
        task_id=task_id,
        priority=priority,
        lane=record.topic,
        headers=headers,
        lane_headers=record.headers,
        lane_value=record.value,
        written_ms=record.timestamp_ms,
        redelivered=redelivered or SWEPT in text,
        origin=(record.partition, record.offset),
    )


def _known_elsewhere(name: str, major: str) -> bool:
    """A message of this version that has no business on a lane is a mistake, not something newer."""
    return name in MESSAGE_TYPES and major == str(MAJOR)


def _check(headers: TaskHeaders, partitions: int) -> None:
    for name, value in (
        ("result_partition", headers.result_partition),
        ("reply_partition", headers.reply_partition),
    ):
        if value is not None and value >= partitions:
            raise HeaderError(f"header {name}: {value}, expected less than {partitions}")
    # They are written into every record about the task.
    if len(headers.request_id) > _LONGEST_TEXT or len(headers.traceparent or "") > _LONGEST_TEXT:
        raise HeaderError(f"headers request_id, traceparent: at most {_LONGEST_TEXT} characters")


def _check_deadline(headers: TaskHeaders, record: InRecord) -> None:
    """A deadline in microseconds would hold its offset for ever, and outlive its cancel and its record."""
    if record.timestamp_ms > 0 and headers.deadline_ms > record.timestamp_ms + DURABLE_RETENTION_MS:
        most = f"at most {LONGEST_DEADLINE_MS} ms after it was written"
        raise HeaderError(f"header deadline: {headers.deadline_ms}, expected epoch milliseconds, {most}")


def _odd(
    fate: Literal["dead", "kept"],
    record: InRecord,
    text: dict[str, str],
    task_id: str | None,
    reason: str,
    partitions: int,
) -> Odd:
    return Odd(
        fate=fate,
        record=record,
        reason=reason,
        task_id=task_id,
        result_partition=_number_below(text.get("result_partition"), partitions),
        tries=_number_below(text.get("tries"), 1_000_000) or 0,
    )


def _number_below(text: str | None, limit: int) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return int(text) if int(text) < limit else None
