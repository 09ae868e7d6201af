"""`chimera topics plan|apply|check`: what the broker must have, and whether it has it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App
from rich.console import Console

from schemas.topics import TopicSpec
from services.adapters.kafka import topic_admin
from services.adapters.kafka.topic_plan import Difference
from services.adapters.kafka.traits import BrokerKind, traits_of
from services.runtime.fleet_file import load_fleet

topics_app = App(name="topics", help="The fleet's topics on the broker.")
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def _wanted(fleet: Path) -> Sequence[TopicSpec]:
    return load_fleet(fleet).topics()


def _bootstrap(given: str | None) -> str:
    found = given or os.environ.get("CHIMERA_KAFKA_BOOTSTRAP_SERVERS")
    if not found:
        raise ValueError("no broker: expected --bootstrap-servers or CHIMERA_KAFKA_BOOTSTRAP_SERVERS")
    return found


@topics_app.command
def plan(
    *, fleet: Path = Path("fleet.yaml"), broker: BrokerKind = "external", bootstrap_servers: str | None = None
) -> None:
    """Show what `apply` would do."""
    found = asyncio.run(topic_admin.plan(_wanted(fleet), _bootstrap(bootstrap_servers), traits_of(broker)))
    for spec in found.create:
        console.print(f"create {spec.name} ({spec.partitions} partitions): {spec.purpose}")
    for change in found.change:
        console.print(f"change {change}")
    _show_faults(found.mismatch)


@topics_app.command
def apply(
    *, fleet: Path = Path("fleet.yaml"), broker: BrokerKind = "external", bootstrap_servers: str | None = None
) -> None:
    """Create what is missing and change what may be changed."""
    done = asyncio.run(topic_admin.apply(_wanted(fleet), _bootstrap(bootstrap_servers), traits_of(broker)))
    _show_faults(done.mismatch)


@topics_app.command
def check(
    *, fleet: Path = Path("fleet.yaml"), broker: BrokerKind = "external", bootstrap_servers: str | None = None
) -> None:
    """Exit 1 with a line per mismatch unless the broker has what the fleet needs."""
    _show_faults(
        asyncio.run(topic_admin.check(_wanted(fleet), _bootstrap(bootstrap_servers), traits_of(broker)))
    )


def _show_faults(faults: Sequence[Difference]) -> None:
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        raise SystemExit(1)
    console.print("nothing else is wrong")
