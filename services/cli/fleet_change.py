"""What another fleet file means for a fleet that runs: pools to add, to take out, to replace."""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.fleet_schema import FleetEntry

# What every process was started with; the rest is taken over while it runs.
_FIXED = ("version", "prefix", "partitions")


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Pool names. `fixed`: keys that differ and only a restart can change; then nothing else is done."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [("add", self.added), ("replace", self.changed), ("remove", self.removed)]
        return "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names) or "defaults only"


def compare(old: FleetEntry, new: FleetEntry) -> FleetChange:
    """The change from the one to the other. New defaults replace every pool, for each has read them."""
    fixed = [key for key in _FIXED if getattr(old, key) != getattr(new, key)]
    if old.defaults.max_tries != new.defaults.max_tries:
        fixed.append("defaults.max_tries")
    before = {pool.name: pool for pool in old.pools}
    after = {pool.name: pool for pool in new.pools}
    shared = old.defaults != new.defaults or old.devices != new.devices or old.tenants != new.tenants
    return FleetChange(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and (shared or before[name] != after[name])),
        fixed=tuple(fixed),
    )
