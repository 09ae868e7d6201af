"""The statements of the sweep, on one connection. `times`: partition -> time (ms) that its log reached."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    case,
    delete,
    func,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from schemas.topics import DAY_MS
from services.adapters.database.tables import idempotency, ledger, parked, tasks
from services.adapters.database.tables import kept as kept_table
from services.core.life.errands import OverdueTask, TakenTask
from services.core.life.table import LedgerState, ParkedState, Verdict

_HOLDS = (ParkedState.PARKED.value, ParkedState.SWEEPING.value)
_MARKS = (ParkedState.SWEPT.value, ParkedState.MOVED.value)
KEY_LIFE_MS = DAY_MS
MARK_LIFE_MS = DAY_MS  # after its deadline a task cannot be re-read into anything but an overdue row
KEPT_LIFE_MS = 30 * DAY_MS


async def due_partitions(connection: AsyncConnection, times: Mapping[int, int]) -> set[int]:
    left = parked.c.state == ParkedState.SWEEPING.value
    found = await connection.execute(
        select(parked.c.partition)
        .where(
            parked.c.state.in_(_HOLDS),
            _reached(
                times,
                parked.c.partition,
                lambda now: or_(left, parked.c.due_ms <= now, parked.c.deadline_ms <= now),
            ),
        )
        .distinct()
    )
    return {row[0] for row in found}


async def take_due(connection: AsyncConnection, times: Mapping[int, int], limit: int) -> list[TakenTask]:
    left = parked.c.state == ParkedState.SWEEPING.value
    found = await connection.execute(
        select(
            parked.c.task_id,
            parked.c.partition,
            parked.c.attempt,
            parked.c.stamp_ms,
            parked.c.deadline_ms,
            parked.c.lane,
            parked.c.headers,
            parked.c.value,
        )
        .where(
            parked.c.state.in_(_HOLDS),
            parked.c.value.is_not(None),
            _reached(
                times,
                parked.c.partition,
                lambda now: and_(parked.c.deadline_ms > now, or_(left, parked.c.due_ms <= now)),
            ),
        )
        .order_by(case((left, 0), else_=1), parked.c.due_ms)
        .limit(limit)
    )
    taken = [TakenTask(*row[:6], orjson.loads(row[6]), row[7]) for row in found]
    await connection.execute(
        update(parked)
        .where(parked.c.task_id.in_([task.task_id for task in taken]), parked.c.state.in_(_HOLDS))
        .values(state=ParkedState.SWEEPING.value)
    ) if taken else None
    return taken


async def mark_swept(connection: AsyncConnection, taken: Sequence[TakenTask]) -> None:
    """Only the state of the row that was taken; the envelope goes, for the lane has it."""
    await connection.execute(
        update(parked)
        .where(
            parked.c.task_id == bindparam("task"),
            parked.c.attempt == bindparam("by"),
            parked.c.stamp_ms == bindparam("stamp"),
            parked.c.state == ParkedState.SWEEPING.value,
        )
        .values(state=ParkedState.SWEPT.value, value=None, headers=None),
        [{"task": task.task_id, "by": task.attempt, "stamp": task.stamp_ms} for task in taken],
    )


async def overdue(connection: AsyncConnection, times: Mapping[int, int], limit: int) -> list[OverdueTask]:
    found = await connection.execute(
        select(parked.c.task_id, parked.c.partition, parked.c.headers)
        .where(
            parked.c.state.in_(_HOLDS),
            _reached(times, parked.c.partition, lambda now: parked.c.deadline_ms <= now),
        )
        .limit(limit)
    )
    return [_overdue(row) for row in found]


async def lose_tries(connection: AsyncConnection, times: Mapping[int, int]) -> int:
    done = await connection.execute(
        update(ledger)
        .where(
            ledger.c.state == LedgerState.OPEN.value,
            ledger.c.deadline_ms > 0,
            _reached(times, ledger.c.partition, lambda now: ledger.c.deadline_ms <= now),
        )
        .values(state=LedgerState.LOST.value, verdict=Verdict.LOST.value, ended_ms=ledger.c.deadline_ms)
    )
    return done.rowcount


async def open_workers(connection: AsyncConnection, partitions: Collection[int]) -> list[str]:
    found = await connection.execute(
        select(ledger.c.worker).where(_open(), ledger.c.partition.in_(sorted(partitions))).distinct()
    )
    return [row[0] for row in found]


async def lose_tries_of(
    connection: AsyncConnection, workers: Collection[str], partitions: Collection[int], at_ms: int
) -> int:
    done = await connection.execute(
        update(ledger)
        .where(
            _open(),
            ledger.c.worker.in_(sorted(workers)),
            ledger.c.partition.in_(sorted(partitions)),
        )
        .values(state=LedgerState.LOST.value, verdict=Verdict.LOST.value, ended_ms=at_ms)
    )
    return done.rowcount


def _open() -> ColumnElement[bool]:
    """As the text of the partial indexes has it: a bound parameter would keep them from being used."""
    return ledger.c.state == literal_column(f"'{LedgerState.OPEN.value}'")


async def newest_stamps(connection: AsyncConnection, partitions: Collection[int]) -> dict[int, int]:
    wanted = sorted(partitions)
    newest: dict[int, int] = {}
    for partition_of, stamp, condition in (
        (parked.c.partition, parked.c.stamp_ms, parked.c.partition.in_(wanted)),
        (
            ledger.c.partition,
            ledger.c.started_ms,
            and_(ledger.c.state == LedgerState.OPEN.value, ledger.c.partition.in_(wanted)),
        ),
    ):
        rows = await connection.execute(
            select(partition_of, func.max(stamp)).where(condition).group_by(partition_of)
        )
        for partition, stamp_ms in rows:
            newest[partition] = max(stamp_ms, newest.get(partition, 0))
    return newest


async def kept(connection: AsyncConnection, after: tuple[int, str] | None, limit: int) -> Sequence[Any]:
    place = (kept_table.c.stamp_ms, kept_table.c.kept_key)
    query = select(kept_table).order_by(*place).limit(limit)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(literal(after[0]), literal(after[1])))
    return (await connection.execute(query)).all()


async def purge(connection: AsyncConnection, now_ms: int) -> int:
    """Answers a day after they were given, keys a day after both call and deadline, marks, kept records."""
    done = await connection.execute(
        update(tasks).where(tasks.c.answer_expires_ms <= now_ms).values(answer=None, answer_expires_ms=None)
    )
    removed = done.rowcount
    for statement in (
        delete(idempotency).where(
            idempotency.c.created_ms <= now_ms - KEY_LIFE_MS, idempotency.c.deadline_ms <= now_ms
        ),
        delete(parked).where(parked.c.state.in_(_MARKS), parked.c.deadline_ms <= now_ms - MARK_LIFE_MS),
        delete(kept_table).where(kept_table.c.stamp_ms <= now_ms - KEPT_LIFE_MS),
    ):
        removed += (await connection.execute(statement)).rowcount
    return removed


def _reached(times: Mapping[int, int], partition: ColumnElement[int], holds: Any) -> ColumnElement[bool]:
    """True for rows of a partition in `times` for whose time `holds` is true."""
    return or_(*(and_(partition == number, holds(now)) for number, now in sorted(times.items())))


def _overdue(row: Sequence[Any]) -> OverdueTask:
    headers = orjson.loads(row[2]) if row[2] else {}
    return OverdueTask(row[0], row[1], str(headers.get("request_id", "")))
