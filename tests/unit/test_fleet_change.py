"""Another fleet file for a fleet that runs: what it means, and what it takes to be believed."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from services.cli.fleet_change import compare
from services.core.fleet import Fleet
from services.runtime.current_fleet import CurrentFleet
from services.runtime.fleet_file import load_fleet, parse_fleet
from services.runtime.fleet_schema import FleetEntry


def entry(*pools: str, **more: object) -> FleetEntry:
    data = {
        "pools": [{"name": name, "model": "m", "base_url": "http://127.0.0.1:1"} for name in pools],
        **more,
    }
    return parse_fleet(yaml.safe_dump(data), "test")


def test_pools_are_told_apart_by_their_names() -> None:
    old, new = entry("a", "b"), entry("b", "c")
    change = compare(old, new)
    assert (change.added, change.removed, change.changed, change.fixed) == (("c",), ("a",), (), ())


def test_a_pool_that_says_something_else_is_replaced() -> None:
    old = entry("a", "b")
    pools = [old.pools[0].model_copy(update={"slots": 9}), old.pools[1]]
    assert compare(old, old.model_copy(update={"pools": pools})).changed == ("a",)


def test_new_devices_or_defaults_replace_every_pool() -> None:
    assert compare(entry("a", "b"), entry("a", "b", devices=[{"name": "d", "slots": 2}])).changed == (
        "a",
        "b",
    )


def test_what_every_position_hangs_on_needs_a_restart() -> None:
    change = compare(entry("a"), entry("a", prefix="other.", partitions=4, defaults={"max_tries": 5}))
    assert change.fixed == ("prefix", "partitions", "defaults.max_tries")


def write(path: Path, fleet: FleetEntry, number: int) -> None:
    path.write_text(yaml.safe_dump(fleet.model_dump(exclude_none=True)))
    os.utime(path, ns=(number, number))


def names(fleet: Fleet) -> list[str]:
    return [pool.name for pool in fleet.pools]


def test_a_file_that_changed_is_taken_over_only_where_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    write(path, entry("a"), 1)
    current = CurrentFleet(load_fleet(path), path)
    heard: list[Fleet] = []
    current.listeners.append(heard.append)
    assert not current.look(path)

    write(path, entry("a", "b"), 2)
    assert current.look(path)
    assert names(current.now) == ["a", "b"]
    assert heard == [current.now]

    path.write_text("pools: []")
    assert not current.look(path)
    assert names(current.now) == ["a", "b"]

    write(path, entry("c", prefix="other."), 4)
    assert not current.look(path)
    path.unlink()
    assert not current.look(path)
    assert names(current.now) == ["a", "b"]
