"""Dead letters read, and sent again as new tasks within a budget."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.headers import to_text
from schemas.messages import RunTask, Usage
from schemas.payload import Claim
from services.adapters.blobs import DirectoryBlobStore
from services.adapters.database.engine import Database
from services.adapters.database.task_rows import ended_tasks
from services.cli.bus_reading import publisher_of, read_topic
from services.cli.running_fleet import RunningFleet
from services.core.dead_letters import DeadLetter, NotReplayable, Replay, replay
from services.core.fleet import Fleet
from services.ports import OutRecord

_USUAL_OUTPUT_TOKENS = 1_024  # where neither the caller nor the estimate says
_SEND_TIMEOUT_S = 10.0
_DATABASE_S = 5.0


async def read_letters(running: RunningFleet) -> list[DeadLetter]:
    """All letters, oldest first. Raises BusError."""
    return [
        DeadLetter(
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.key,
            record.value,
            to_text(record.headers),
        )
        async for record in read_topic(running, running.names.dead)
    ]


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """`n`: which replay of each letter this is. None: no limit; `budget_usd` is held against worst cases."""

    n: int = 1
    most: int | None = None
    budget_usd: float | None = None
    deadline_s: float | None = None


@dataclass(slots=True)
class Plan:
    """What would be sent, what cannot be, what the limits leave out, and what it may cost at worst."""

    replays: list[tuple[DeadLetter, Replay]] = field(default_factory=list)
    refused: list[tuple[DeadLetter, str]] = field(default_factory=list)
    left_out: int = 0
    worst_usd: float = 0.0


async def plan(running: RunningFleet, letters: Sequence[DeadLetter], limits: ReplayLimits) -> Plan:
    """The replays of these letters, oldest first, as far as the limits go; a task's letters count once.

    One that has ended is not sent again: no worker remembers it for longer than minutes, so it would run, and
    cost, once more. Raises StoreError where that cannot be asked.
    """
    found, possible = Plan(), list[tuple[DeadLetter, Replay]]()
    oldest = {letter.task_id: letter for letter in reversed(letters)}
    now_ms, blobs = int(time.time() * 1000), DirectoryBlobStore(running.blob_dir, running.fleet.prefix)
    for letter in reversed(oldest.values()):
        made = await _made(letter, blobs, limits, now_ms, running.fleet)
        if isinstance(made, NotReplayable):
            found.refused.append((letter, made.why))
        else:
            possible.append((letter, made))
    ended = await _ended(running, [made.task.task_id for _, made in possible])
    for letter, made in possible:
        if (state := ended.get(made.task.task_id)) is not None:
            why = f"its replay {limits.n} has ended ({state}); another --n is another task"
            found.refused.append((letter, why))
            continue
        worst_usd = worst_cost_usd(made.task, running.fleet)
        full = limits.most is not None and len(found.replays) >= limits.most
        dear = limits.budget_usd is not None and found.worst_usd + worst_usd > limits.budget_usd
        if full or dear:
            found.left_out += 1
            continue
        found.worst_usd += worst_usd
        found.replays.append((letter, made))
    return found


async def _ended(running: RunningFleet, task_ids: Sequence[str]) -> dict[str, str]:
    database = Database(running.database_url, timeout_s=_DATABASE_S)
    try:
        return await ended_tasks(database, task_ids)
    finally:
        await database.close()


async def _made(
    letter: DeadLetter, blobs: DirectoryBlobStore, limits: ReplayLimits, now_ms: int, fleet: Fleet
) -> Replay | NotReplayable:
    value: bytes | None = None
    if claim_text := letter.headers.get("dead_claim"):
        try:
            claim = Claim.model_validate_json(claim_text)
            value = await blobs.get(claim.key, claim.sha256)
        except (KeyError, ValueError, OSError):
            value = None
    made = replay(letter, value, limits.n, now_ms, now_ms, fleet.partitions)
    if isinstance(made, NotReplayable):
        return made
    if fleet.pool(made.task.pool) is None:
        return NotReplayable(f"its pool {made.task.pool} is not in the fleet any more")
    seconds = limits.deadline_s or fleet.deadlines_s[made.task.priority]
    headers = made.headers.with_changes(deadline_ms=now_ms + int(seconds * 1000))
    return Replay(made.old, made.task, headers, made.value)


def worst_cost_usd(task: RunTask, fleet: Fleet) -> float:
    """USD: all tries of a task at their longest, by its pool's price."""
    pool = fleet.pool(task.pool)
    if pool is None:
        return 0.0
    usage = Usage(
        input_tokens=task.input_tokens or pool.context_tokens // 2,
        output_tokens=task.output_tokens or min(_USUAL_OUTPUT_TOKENS, pool.context_tokens),
    )
    return fleet.max_tries * pool.price.cost_usd(usage, pool.timeouts.total_s)


async def send(running: RunningFleet, replays: Iterable[Replay]) -> int:
    """Sends each and waits for its acknowledgement; how many. Raises BusError at the first that got none."""
    sent = 0
    async with publisher_of(running) as publisher:
        for one in replays:
            lane = running.names.lane(one.task.pool, one.task.priority)
            record = OutRecord(lane, one.task.task_id.encode(), one.value, one.headers.to_wire())
            await publisher.send(record, timeout_s=_SEND_TIMEOUT_S)
            sent += 1
    return sent
