"""`chimera up` and `down`: a fleet on this machine, started, left running, and stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from services.adapters.kafka.traits import BrokerKind
from services.cli.detached import start_detached
from services.cli.processes import StateDir
from services.cli.run_record import stop_run
from services.cli.up import Up, UpOptions
from services.runtime.lifecycle import stop_event

console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
StateOption = Annotated[
    Path, Parameter(name="--state-dir", help="where logs, data and the record of the run are")
]
DOWN_GRACE_S = 60.0


def up(
    *,
    fleet: Path = Path("fleet.yaml"),
    broker: BrokerKind = "local",
    host: str = "127.0.0.1",
    port: int = 8080,
    state_dir: StateOption = Path(".chimera"),
    insecure: bool = False,
    detach: bool = False,
) -> None:
    """Start everything on this machine: broker, small real models, every service.

    Parameters
    ----------
    fleet
        The pools; a file with `launch` starts real small models.
    broker
        local (in memory), kafka (Apache Kafka from its jars), or external (CHIMERA_KAFKA_BOOTSTRAP_SERVERS).
    host
        Address of the HTTP edge.
    port
        Port of the HTTP edge.
    insecure
        Allow a host beyond this machine: whoever reaches it may use the models, for there are no keys yet.
    detach
        Return once the first question was answered, and leave the fleet running.
    """
    options = UpOptions(fleet, broker, StateDir(state_dir), host, port, *_run_by_others())
    if detach:
        arguments = ["--insecure"] if insecure else []
        arguments += ["--fleet", str(fleet), "--broker", broker, "--host", host, "--port", str(port)]
        raise SystemExit(start_detached([*arguments, "--state-dir", str(state_dir)], options.state, console))
    environment = {**os.environ, **({"CHIMERA_INSECURE": "true"} if insecure else {})}
    asyncio.run(_run_here(options, environment))


def _run_by_others() -> tuple[str | None, str | None]:
    """The brokers and the database that the environment names."""
    return os.environ.get("CHIMERA_KAFKA_BOOTSTRAP_SERVERS"), os.environ.get("CHIMERA_DATABASE_URL")


async def _run_here(options: UpOptions, environment: Mapping[str, str]) -> None:
    await Up(options, console.print, environment).run(stop_event())


def down(*, state_dir: StateOption = Path(".chimera")) -> None:
    """Stop exactly what `chimera up` started from this state directory."""
    run_file = StateDir(state_dir).run_file
    if not run_file.exists():
        console.print(f"nothing runs from {state_dir}")
        return
    killed = asyncio.run(stop_run(run_file, grace_s=DOWN_GRACE_S))
    console.print(f"stopped; had to be killed: {', '.join(killed)}" if killed else "stopped")
