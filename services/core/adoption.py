"""Which pools' lanes a worker adopts: those without a worker for long, one adopter each.

Pure. The adopter of a pool is the first of a rendezvous hash over all workers that take work: every reader of
`fleet` finds the same one, and one that leaves moves only what it had adopted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from services.core.fleet_table import FleetTable


def adopter_of(pool: str, workers: Iterable[str]) -> str | None:
    """The worker first in the hash of pool and worker; None where there is none."""
    return max(workers, key=lambda worker: (_weight(pool, worker), worker), default=None)


def orphans(
    pools: Sequence[str], table: FleetTable, now_s: float, read_s: float, after_s: float
) -> list[str]:
    """Pools that had no `ready` or `loading` beat for `after_s`; what waits in a paused one stays, by order.

    `read_s`: for how long the table has been whole; who was never heard of is silent for that long.
    """
    silent = []
    for pool in pools:
        if table.mode(pool) == "paused":
            continue
        told_s = table.silent_s(pool, now_s)
        if (read_s if told_s is None else min(told_s, read_s)) >= after_s:
            silent.append(pool)
    return silent


def to_adopt(
    worker: str, pools: Sequence[str], table: FleetTable, now_s: float, read_s: float, after_s: float
) -> list[str]:
    """The pools whose lanes this worker reads."""
    silent = orphans(pools, table, now_s, read_s, after_s)
    if not silent:
        return []
    ready = [
        member.beat.worker
        for member in table.members()
        if member.beat.state == "ready" and not table.is_dead(member.beat.worker, now_s)
    ]
    return [pool for pool in silent if adopter_of(pool, ready) == worker]


def _weight(pool: str, worker: str) -> bytes:
    return hashlib.blake2b(f"{pool}\0{worker}".encode(), digest_size=8).digest()
