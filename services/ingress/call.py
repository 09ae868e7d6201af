"""A call that has been admitted and routed: everything that is needed to send and to answer it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from services.core.admission import Admitted, BodyKind
from services.core.call_options import CallOptions
from services.core.fleet import Pool
from services.ingress.call_record import CallRecord
from services.ingress.closes import Unwanted


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The client's key and the hex SHA-256 of what it stands for."""

    key: str
    body_sha256: str


@dataclass(frozen=True, slots=True)
class Call:
    """`raw` is the client's body as it came; `deadline_ms` is absolute. `streaming`: chunks are wanted."""

    record: CallRecord
    kind: BodyKind
    raw: bytes
    admitted: Admitted
    options: CallOptions
    pool: Pool
    task_id: str
    deadline_ms: int
    result_partition: int
    reply_partition: int | None
    streaming: bool
    grace_s: float  # how long past the deadline the log's own word is waited for
    key: IdempotencyKey | None = None
    tenant: str = "default"

    def gives_up_at(self) -> float:
        """The event loop's time at which the caller hears of the deadline, with or without the log's word."""
        left_s = self.deadline_ms / 1000 - time.time() + self.grace_s
        return asyncio.get_running_loop().time() + left_s

    def unwanted(self) -> Unwanted:
        """What of it is kept to close its task."""
        return Unwanted(self.task_id, self.record.request_id, self.result_partition, self.deadline_ms)
