"""Tasks as a worker holds them, and a backlog for them, without a broker."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.headers import TaskHeaders
from schemas.topics import Priority
from services.core.order import RANKS, OrderName
from services.worker_pools.backlog import Backlog, Sharing
from services.worker_pools.held import Held


def backlog_with(weights: Mapping[Priority, int], order: OrderName) -> Backlog:
    return Backlog(weights, 1_000, 1 << 20, sharing=Sharing(rank=RANKS[order]))


def waiting(
    task_id: str,
    *,
    priority: Priority = "interactive",
    written_s: float = 0.0,
    deadline_s: float = 1_000.0,
    tokens: float = 0.0,
    tenant: str = "default",
) -> Held:
    """A task that was read from its lane; `deadline_s` in seconds since the epoch."""
    headers = TaskHeaders("req", int(deadline_s * 1000), 0, tenant=tenant, tokens=tokens)
    written_ms = int(written_s * 1000)
    return Held(task_id, priority, "lane", headers, (), b"{}", written_ms, redelivered=False, origin=(0, 0))
