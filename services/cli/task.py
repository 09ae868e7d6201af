"""`chimera task show ID`: where a task is, its attempts, what it cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from schemas.fleet_messages import WorkerBeat
from schemas.topics import PRIORITIES
from services.adapters.database.engine import Database
from services.adapters.database.task_rows import RowsOfTask, rows_of_task
from services.cli.bus_reading import committed_offsets, read_fleet, read_topic
from services.cli.running_fleet import RunningFleet, find_fleet
from services.core.task_story import LanePlace, story
from services.ports import StoreError

task_app = App(name="task", help="One task: where it is, its attempts, what it cost.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
_WHO = ("attempt", "worker", "pool", "model")
_COLUMNS = (*_WHO, "state", "verdict", "input_tokens", "output_tokens", "cost_usd")


@task_app.command
def show(
    task_id: str,
    *,
    json: bool = False,
    state_dir: Annotated[Path, Parameter(name="--state-dir")] = Path(".chimera"),
) -> None:
    """Show where a task is now, its attempts, and what it cost.

    Parameters
    ----------
    task_id
        The task's id, or the request id of an ended task.
    json
        One JSON document.
    state_dir
        Where `chimera up` keeps its state; CHIMERA_* variables win over it.
    """
    found = asyncio.run(_found(find_fleet(state_dir), task_id))
    if not found:
        raise ValueError(f"task {task_id}: no row, worker or lane has it; expected a task or request id")
    if json:
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2, default=str).decode())
        return
    for one in found:
        console.print(f"task {one['task_id']}: {one['where']}", markup=False)
        console.print(f"  charged {one['charged_usd']:.6f} USD, waste {one['waste_usd']:.6f} USD")
        if one["failure"]:
            console.print(f"  failure: {one['failure']}", markup=False)
        table = Table(*_COLUMNS)
        for attempt in one["attempts"]:
            table.add_row(*(str(attempt[name]) for name in _COLUMNS))
        if one["attempts"]:
            console.print(table)


async def _found(running: RunningFleet, name: str) -> list[dict[str, Any]]:
    database = Database(running.database_url, timeout_s=5.0)
    try:
        rows = await rows_of_task(database, name)
    except StoreError as fault:
        raise ValueError(f"the database does not answer: {fault}") from None
    finally:
        await database.close()
    table = await read_fleet(running)
    now_s = time.time()
    beats = [member.beat for member in table.members() if not table.is_dead(member.beat.worker, now_s)]
    found = []
    for one in rows or [RowsOfTask(name, None, (), None)]:
        at = [beat for beat in beats if one.task_id in beat.running]
        lanes = [] if one.outcome is not None or at else await _lanes(running, one.task_id)
        if rows or at or lanes:
            found.append(_told(one, at, lanes))
    return found


def _told(one: RowsOfTask, at: list[WorkerBeat], lanes: list[LanePlace]) -> dict[str, Any]:
    told = story(one.outcome, one.attempts, one.parked, at, lanes)
    outcome: Mapping[str, Any] = one.outcome or {}
    return {
        "task_id": one.task_id,
        "request_id": outcome.get("request_id"),
        "where": told.where,
        "charged_usd": told.charged_usd,
        "waste_usd": told.waste_usd,
        "failure": outcome.get("failure"),
        "attempts": [
            {name: row[name] for name in (*_COLUMNS, "started_ms", "ended_ms")} for row in one.attempts
        ],
    }


async def _lanes(running: RunningFleet, task_id: str) -> list[LanePlace]:
    """Its lane records. Looks through all lanes: only for tasks that nobody else knows of."""
    places, key = list[LanePlace](), task_id.encode()
    for pool in running.fleet.pools:
        for priority in PRIORITIES:
            lane = running.names.lane(pool.name, priority)
            records = read_topic(running, lane, running.fleet.partitions)
            mine = [record async for record in records if record.key == key]
            if mine:
                group = running.names.lane_group(pool.name, priority)
                done = await committed_offsets(running, group, lane)
                places += [
                    LanePlace(lane, one.partition, one.offset, one.offset < done.get(one.partition, 0))
                    for one in mine
                ]
    return places
