"""What a worker stands on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.topics import Priority
from services.ports import (
    BackendLook,
    BlobStore,
    Clock,
    Connections,
    GroupSource,
    Journal,
    LogReader,
    ModelClient,
    Publisher,
    RandomUnit,
)


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the worker stands on; `__main__` builds it, and stops what it built.

    `durable` and `chunks` are two publishers, started; `new_attempt` mints uuid7s; `uniform` is random in
    [0, 1). Without `look` the backends count as there, and nothing is asked of them beside the tries.
    `lane_source` makes what joins the group of any pool's lane: for lanes that are adopted.
    """

    lanes: Mapping[Priority, GroupSource]
    lane_source: Callable[[str, Priority], GroupSource]
    control: LogReader
    fleet: LogReader
    durable: Publisher
    chunks: Publisher
    model: ModelClient
    blobs: BlobStore
    journal: Journal
    clock: Clock
    uniform: RandomUnit
    new_attempt: Callable[[], str]
    steady_s: Callable[[], float] = time.monotonic
    fleet_file: Path | None = None
    look: BackendLook | None = None
    connections: Connections | None = None
