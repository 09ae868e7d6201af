"""`chimera check-fleet`: a fleet file, looked at before anything is started from it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from services.runtime.fleet_file import load_fleet

console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def check_fleet(fleet: Path = Path("fleet.yaml")) -> None:
    """Validate a fleet file and list its pools."""
    for pool in load_fleet(fleet).pools:
        capabilities = ", ".join(sorted(pool.capabilities))
        console.print(f"{pool.name}: {pool.model} ({pool.backend}), {pool.slots} slots, {capabilities}")
