"""`chimera`: the command line. Each command says in one line what went wrong and what was expected."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from infra.process import ProcessFailedError
from services.adapters.kafka.traits import BrokerKind
from services.cli.dead import dead_app
from services.cli.detached import start_detached
from services.cli.doctor import doctor_app
from services.cli.loadtest import loadtest_app
from services.cli.pools import pools_app
from services.cli.processes import StateDir
from services.cli.run_record import stop_run
from services.cli.schemas import schemas_app
from services.cli.task import task_app
from services.cli.top import top_app
from services.cli.topics import topics_app
from services.cli.up import Up, UpError, UpOptions
from services.ports import BusError
from services.runtime.fleet_file import FleetFileError, load_fleet
from services.runtime.lifecycle import CONFIG_ERROR_EXIT, stop_event

app = App(name="chimera", help="A message-bus worker fleet for multi-step LLM work.")
app.command(topics_app)
app.command(loadtest_app)
app.command(schemas_app)
app.command(dead_app)
app.command(task_app)
app.command(doctor_app)
app.command(top_app)
app.command(pools_app)
console = Console(highlight=False, soft_wrap=True)

StateOption = Annotated[
    Path, Parameter(name="--state-dir", help="where logs, data and the record of the run are")
]
DOWN_GRACE_S = 60.0


@app.command
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


@app.command
def down(*, state_dir: StateOption = Path(".chimera")) -> None:
    """Stop exactly what `chimera up` started from this state directory."""
    run_file = StateDir(state_dir).run_file
    if not run_file.exists():
        console.print(f"nothing runs from {state_dir}")
        return
    killed = asyncio.run(stop_run(run_file, grace_s=DOWN_GRACE_S))
    console.print(f"stopped; had to be killed: {', '.join(killed)}" if killed else "stopped")


@app.command
def check_fleet(fleet: Path = Path("fleet.yaml")) -> None:
    """Validate a fleet file and list its pools."""
    for pool in load_fleet(fleet).pools:
        capabilities = ", ".join(sorted(pool.capabilities))
        console.print(f"{pool.name}: {pool.model} ({pool.backend}), {pool.slots} slots, {capabilities}")


def main(tokens: list[str] | None = None) -> Any:
    """Runs a command; faults of the user's making end in a line on stderr and a status, never a traceback."""
    try:
        return app(tokens)
    except FleetFileError as fault:
        print(fault, file=sys.stderr)
        raise SystemExit(CONFIG_ERROR_EXIT) from None
    except (UpError, ProcessFailedError, BusError, ValueError) as fault:
        print(f"chimera: {fault}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
