"""Records that an earlier version could not read are applied once this one can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from schemas.codec import SchemaError, Unknown, decode
from schemas.headers import to_text
from schemas.messages import RunTask, SubmitTask
from schemas.topics import TopicNames
from services.core.life.errands import KeptRecord, LogBatch
from services.core.life.rows import Effect, LogEntry
from services.ports import BookkeeperStore, InRecord, OutRecord, RowsRefused
from services.runtime.set_aside import dead_record

log = structlog.get_logger(__name__)
_PAGE = 200

Deliver = Callable[[Sequence[OutRecord]], Awaitable[None]]


async def apply_kept(
    store: BookkeeperStore, names: TopicNames, deliver: Deliver, record_of: Callable[[Effect], OutRecord]
) -> int:
    """Goes through all kept records once; returns how many left. Raises StoreError.

    Results are folded; lane records go back to the topic they were read from. `deliver` returns once all that
    it was given is acknowledged: only then a record leaves `kept`.
    """
    after: tuple[int, str] | None = None
    left = 0
    while page := await store.kept(after=after, limit=_PAGE):
        for kept in page:
            left += await _apply(store, names, deliver, record_of, kept)
        after = (page[-1].stamp_ms, page[-1].kept_key)
    if left:
        log.info("kept records applied", count=left)
    return left


async def _apply(
    store: BookkeeperStore,
    names: TopicNames,
    deliver: Deliver,
    record_of: Callable[[Effect], OutRecord],
    kept: KeptRecord,
) -> bool:
    headers = to_text(kept.headers)
    try:
        message = decode(headers, kept.value)
    except SchemaError as fault:
        await deliver([dead_record(_as_read(kept, names), names, str(fault))])
        await store.apply(LogBatch(unkeep=(kept.kept_key,)))
        return True
    if isinstance(message, Unknown):
        return False
    if isinstance(message, RunTask | SubmitTask):
        await deliver([_back_to_its_topic(kept, headers.get("kept_origin_topic", names.dead))])
        await store.apply(LogBatch(unkeep=(kept.kept_key,)))
        return True
    entry = LogEntry(kept.partition, kept.stamp_ms, headers.get("request_id", ""), message)
    try:
        effects = await store.apply(LogBatch((entry,)))
    except RowsRefused as fault:
        await deliver([dead_record(_as_read(kept, names), names, str(fault))])
    else:
        await deliver([record_of(effect) for effect in effects])
    await store.apply(LogBatch(unkeep=(kept.kept_key,)))
    return True


def _back_to_its_topic(kept: KeptRecord, topic: str) -> OutRecord:
    own = [(name, value) for name, value in kept.headers if not name.startswith("kept_")]
    return OutRecord(topic, kept.task_key, kept.value, own)


def _as_read(kept: KeptRecord, names: TopicNames) -> InRecord:
    return InRecord(names.results, kept.partition, 0, kept.stamp_ms, kept.task_key, kept.value, kept.headers)
