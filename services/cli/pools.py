"""`chimera pools [list|pause|resume|drain]`: the fleet as its heartbeats show it, and orders to its pools."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter
from rich.console import Console

from schemas.fleet_messages import PoolMode, PoolOrder
from services.adapters.kafka.log_reader import KafkaLogReader
from services.cli.bus_reading import answering
from services.cli.pool_order import give_order
from services.cli.running_fleet import RunningFleet, find_fleet
from services.core.fleet_table import DEAD_AFTER_S, FleetTable, Member, stall_bounds
from services.runtime.fleet_view import FleetView

pools_app = App(name="pools", help="The pools: who works in them, and orders to pause, resume or drain one.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
StateOption = Annotated[Path, Parameter(name="--state-dir", help="where `chimera up` keeps its record")]
BootstrapOption = Annotated[
    str | None, Parameter(name=("--bootstrap-servers", "--bootstrap"), help="of another fleet's broker")
]
_LOOK_S = 0.05


@pools_app.default
def show(
    *, json: bool = False, state_dir: StateOption = Path(".chimera"), bootstrap: BootstrapOption = None
) -> None:
    """Show every pool: its mode, its workers by state, slots, what runs and what waits."""
    shown = asyncio.run(_look(_running(state_dir, bootstrap)))
    if json:
        print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    else:
        _print(shown)


@pools_app.command(name="list")
def list_(
    *, json: bool = False, state_dir: StateOption = Path(".chimera"), bootstrap: BootstrapOption = None
) -> None:
    """The same as `chimera pools`."""
    show(json=json, state_dir=state_dir, bootstrap=bootstrap)


@pools_app.command
def pause(
    name: str,
    *,
    reason: str = "",
    json: bool = False,
    state_dir: StateOption = Path(".chimera"),
    bootstrap: BootstrapOption = None,
) -> None:
    """Start nothing in a pool: what runs ends, what waits stays where it is."""
    _order(name, "paused", reason, json, _running(state_dir, bootstrap))


@pools_app.command
def resume(
    name: str,
    *,
    reason: str = "",
    json: bool = False,
    state_dir: StateOption = Path(".chimera"),
    bootstrap: BootstrapOption = None,
) -> None:
    """Let a paused or draining pool work again."""
    _order(name, "running", reason, json, _running(state_dir, bootstrap))


@pools_app.command
def drain(
    name: str,
    *,
    reason: str = "",
    json: bool = False,
    state_dir: StateOption = Path(".chimera"),
    bootstrap: BootstrapOption = None,
) -> None:
    """Start nothing in a pool: what runs ends, what waits moves to other pools where it may."""
    _order(name, "draining", reason, json, _running(state_dir, bootstrap))


def _running(state_dir: Path, bootstrap: str | None) -> RunningFleet:
    given = {} if bootstrap is None else {"CHIMERA_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    return find_fleet(state_dir, {**os.environ, **given})


def _order(name: str, mode: PoolMode, reason: str, as_json: bool, running: RunningFleet) -> None:
    order = asyncio.run(_send(name, mode, reason, running))
    if as_json:
        print(orjson.dumps({"pool": name, "mode": mode, "by": order.by, "reason": reason}).decode())
    else:
        console.print(f"{name}: {mode}")


async def _send(name: str, mode: PoolMode, reason: str, running: RunningFleet) -> PoolOrder:
    known = {pool.name for pool in running.fleet.pools}
    if name not in known:
        raise ValueError(f"no pool {name!r}: expected one of {', '.join(sorted(known))}")
    return await give_order(running, name, mode, reason)


async def _look(running: RunningFleet) -> list[dict[str, Any]]:
    """Every pool of the fleet file, and those that are in the fleet all the same."""
    async with answering(running):
        view = await _heard(running)
    now_s, table = view.now_s(), view.table
    members = tuple(table.members())
    named = [pool.name for pool in running.fleet.pools]
    others = sorted({member.beat.pool for member in members} - set(named))
    return [
        _pool(name, table, [member for member in members if member.beat.pool == name], now_s)
        for name in (*named, *others)
    ]


async def _heard(running: RunningFleet) -> FleetView:
    """The fleet, once everybody in it has beaten again or is dead."""
    reader = KafkaLogReader(
        running.bootstrap_servers,
        running.traits,
        topic=running.names.fleet,
        partitions=[0],
        client_id="chimera-cli-pools",
        fetch_max_wait_ms=running.traits.fetch_max_wait_ms["control"],
    )
    view = FleetView(reader, FleetTable(stalled_after_s=stall_bounds(running.fleet)), time.monotonic)
    following = asyncio.create_task(view.run())
    try:
        await view.caught_up.wait()
        since_s = time.monotonic()
        while time.monotonic() < since_s + DEAD_AFTER_S and not _all_heard(view, since_s):
            await asyncio.sleep(_LOOK_S)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return view


def _all_heard(view: FleetView, since_s: float) -> bool:
    now_s, table = view.now_s(), view.table
    return all(
        member.heard_s > since_s or table.is_dead(member.beat.worker, now_s) for member in table.members()
    )


def _pool(name: str, table: FleetTable, members: list[Member], now_s: float) -> dict[str, Any]:
    order = table.order(name)
    alive = [member.beat for member in members if not table.is_dead(member.beat.worker, now_s)]
    dead = [member for member in members if table.is_dead(member.beat.worker, now_s)]
    census = table.census(now_s)
    return {
        "pool": name,
        "mode": table.mode(name),
        "reason": order.reason if order is not None else "",
        "by": order.by if order is not None else "",
        "workers": {state: census[name, state] for state in ("ready", "loading", "draining", "dead")},
        "slots": sum(beat.slots for beat in alive),
        "in_flight": sum(beat.in_flight for beat in alive),
        "queued": sum(beat.queued for beat in alive),
        "queue_seconds": round(sum(beat.queue_seconds for beat in alive), 3),
        "dead": [_dead(member, now_s) for member in dead],
    }


def _dead(member: Member, now_s: float) -> dict[str, Any]:
    silent_s = now_s - member.heard_s
    why = "silent" if silent_s >= DEAD_AFTER_S else "no progress"
    return {"worker": member.beat.worker, "why": why, "for_s": round(max(silent_s, member.beat.quiet_s), 1)}


def _print(shown: list[dict[str, Any]]) -> None:
    states, figures = ("ready", "loading", "draining", "dead"), ("slots", "in_flight", "queued")
    rows = [("pool", "mode", *states, "slots", "in flight", "queued", "queue s")]
    for pool in shown:
        numbers = [*(pool["workers"][state] for state in states), *(pool[name] for name in figures)]
        rows.append((pool["pool"], pool["mode"], *map(str, numbers), str(pool["queue_seconds"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.print("  ".join(cells).rstrip(), markup=False)
    for pool in shown:
        if pool["mode"] != "running":
            why = f": {pool['reason']}" if pool["reason"] else ""
            console.print(f"{pool['mode']}: {pool['pool']}, by {pool['by']}{why}", markup=False)
        for dead in pool["dead"]:
            told = f"{dead['why']} for {dead['for_s']} s"
            console.print(f"dead: {dead['worker']} ({pool['pool']}), {told}", markup=False)
