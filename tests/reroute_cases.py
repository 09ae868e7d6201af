"""Tasks, workers and fleets as `reroute` sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from schemas.fleet_messages import PoolMode
from schemas.topics import TopicNames
from services.core.fleet import Pool, Price
from services.core.fleet_load import Station
from services.core.reroute import (
    Cause,
    FleetSnapshot,
    Here,
    Move,
    RerouteLaw,
    TaskFacts,
)
from services.core.routing import Need

NAMES = TopicNames("t.")
LAW = RerouteLaw()
PARTITIONS = 4
NOW_S = 1_000.0
A = Pool(name="a", model="m", fallbacks=("b",), quality=0.5, price=Price(output_per_mtok=1))
B = Pool(name="b", model="other", features=frozenset({"tools"}), quality=0.4, price=Price(output_per_mtok=2))
OUTSIDE = Pool(name="outside", model="m", external=True, context_tokens=100_000, quality=0.9)
POOLS = (A, B, OUTSIDE)
STOPPED: tuple[PoolMode, ...] = ("paused", "draining")
CAUSES: tuple[Cause, ...] = ("late", "tail", "drained", "no_backend", "orphaned")


def task(**more: object) -> TaskFacts:
    need = {
        name: more.pop(name)
        for name in ("model", "features", "data_policy", "objective", "input_tokens", "capabilities")
        if name in more
    }
    wanted = Need(kind="chat", model=need.pop("model", "auto"), **need)  # type: ignore[arg-type] # by name
    facts = TaskFacts("task", wanted, "a", "interactive", NOW_S + 60, NOW_S - 1)
    return replace(facts, **more)  # type: ignore[arg-type] # by name


def station(pool: str, worker: str = "", **more: object) -> Station:
    name = worker or f"w-{pool}"
    owns = {NAMES.lane(pool, priority): (1, 3) for priority in ("interactive", "standard", "batch")}
    made = Station(name, pool, "ready", slots=2, free=2, work_s=0.0, usual_s=1.0, owns=owns)
    return replace(made, **more)  # type: ignore[arg-type] # by name


def fleet(*stations: Station, modes: Mapping[str, PoolMode] | None = None) -> FleetSnapshot:
    return FleetSnapshot(NAMES, PARTITIONS, POOLS, stations, modes or {})


def here(cause: Cause, **more: object) -> Here:
    return replace(Here("a", "me", cause, wait_s=10.0), **more)  # type: ignore[arg-type] # by name


def pool_of(step: object) -> str | None:
    return step.pool if isinstance(step, Move) else None
