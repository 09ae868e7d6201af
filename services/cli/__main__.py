"""`chimera`: the command line. Each command says in one line what went wrong and what was expected."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from cyclopts import App

from infra.process import ProcessFailedError
from services.cli.faults import UpError
from services.ports import BusError, StoreError
from services.runtime.fleet_file import FleetFileError
from services.runtime.lifecycle import CONFIG_ERROR_EXIT

app = App(name="chimera", help="A message-bus worker fleet for multi-step LLM work.")
# By name, so that a command imports what it needs itself, and no other one does.
_COMMANDS = {
    "up": ("local_run:up", "Start everything on this machine: broker, small real models, every service."),
    "down": ("local_run:down", "Stop exactly what `chimera up` started from this state directory."),
    "check-fleet": ("fleet_check:check_fleet", "Validate a fleet file and list its pools."),
    "topics": ("topics:topics_app", "The fleet's topics on the broker."),
    "pools": ("pools:pools_app", "The pools: who works in them, and orders to pause, resume or drain one."),
    "top": ("top:top_app", "The fleet as it works, live."),
    "task": ("task:task_app", "One task: where it is, its attempts, what it cost."),
    "dead": ("dead:dead_app", "Dead letters: what could not be done, why, and once more."),
    "doctor": ("doctor:doctor_app", "Find out what ails a fleet, and what cures it."),
    "loadtest": ("loadtest:loadtest_app", "Benchmarks and fault schedules on real processes."),
    "schemas": ("schemas:schemas_app", "JSON Schemas and the AsyncAPI document of the bus."),
}
for _name, (_place, _help) in _COMMANDS.items():
    app.command(f"services.cli.{_place}", name=_name, help=_help)


def main() -> Any:
    """The process of one command."""
    # A client says with every try that its broker is away: a command says it once. stdout is the answer's.
    logging.getLogger().addHandler(logging.NullHandler())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))
    return run()


def run(tokens: list[str] | None = None) -> Any:
    """Runs a command; faults of the user's making end in a line on stderr and a status, never a traceback."""
    try:
        return app(tokens)
    except FleetFileError as fault:
        print(fault, file=sys.stderr)
        raise SystemExit(CONFIG_ERROR_EXIT) from None
    except (UpError, ProcessFailedError, BusError, StoreError, OSError, ValueError) as fault:
        print(f"chimera: {fault}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
