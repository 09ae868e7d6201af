"""What a parked row can carry: the lane record's value as text in a record's JSON, where it may double."""

from __future__ import annotations

import orjson

from schemas.payload import Claim
from schemas.topics import MAX_RECORD_BYTES
from services.ports import BlobStore
from services.worker_pools.held import Held

_MOST_BYTES = MAX_RECORD_BYTES - 64 * 1024  # the rest of the record is far smaller


async def claim_body(held: Held, blobs: BlobStore) -> None:
    """Where the envelope would not fit a record, the task's body is claimed in it. Raises OSError.

    For a task whose value was decoded. Quotes, backslashes and line breaks are two bytes each in the
    envelope, all else of JSON text is as long as it was.
    """
    value = held.lane_value
    if held.claimed_value is not None or 2 * len(value) <= _MOST_BYTES:
        return
    task = orjson.loads(value)
    inline = task["body"].get("inline")
    if inline is None or len(orjson.dumps(value.decode())) <= _MOST_BYTES:
        return
    body = orjson.dumps(inline)
    key, sha256 = await blobs.put(body)
    task["body"] = {"claim": Claim(key=key, sha256=sha256, size=len(body)).model_dump()}
    held.claimed_value = orjson.dumps(task)
