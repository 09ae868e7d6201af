"""Records of `results` as the bookkeeper takes them: to fold, to keep as bytes, or to bury."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.codec import SchemaError, Unknown, decode
from schemas.headers import to_text
from schemas.topics import TopicNames
from services.core.life.errands import KeptRecord
from services.core.life.rows import LogEntry
from services.ports import InRecord, OutRecord
from services.runtime.set_aside import dead_record

MARK = "SweepMark"
"""Type of a record by which a sweep proves that it has read its partition to the end; it is about no task."""

_KEPT_HEADERS = "kept_"


@dataclass(slots=True)
class Read:
    """What a poll brought. `dead`: what is owed to `tasks.dead` before the offsets are committed."""

    entries: list[LogEntry] = field(default_factory=list)
    keep: list[KeptRecord] = field(default_factory=list)
    dead: list[OutRecord] = field(default_factory=list)


def read(records: Sequence[InRecord], names: TopicNames) -> Read:
    """Sorts records, in their order."""
    found = Read()
    for record in records:
        headers = to_text(record.headers)
        if headers.get("type") == MARK:
            continue
        try:
            message = decode(headers, record.value)
        except SchemaError as fault:
            found.dead.append(dead_record(record, names, str(fault)))
            continue
        if isinstance(message, Unknown):
            found.keep.append(kept_record(record, message))
        else:
            request_id = headers.get("request_id", "")
            found.entries.append(LogEntry(record.partition, record.timestamp_ms, request_id, message))
    return found


def kept_record(record: InRecord, unknown: Unknown) -> KeptRecord:
    """The record as it is. Its name is a hash of what it says: a repeat has the same, wherever it stands."""
    digest = hashlib.sha256()
    own = [(name, value) for name, value in record.headers if not name.startswith(_KEPT_HEADERS)]
    parts = (
        record.key or b"",
        record.value or b"",
        *(b"%s=%s" % (name.encode(), value) for name, value in own),
    )
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return KeptRecord(
        digest.hexdigest(),
        record.partition,
        record.timestamp_ms,
        unknown.type[:128].replace("\x00", ""),
        unknown.major[:32].replace("\x00", ""),
        record.key,
        record.value,
        record.headers,
    )
