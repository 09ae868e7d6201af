"""How a service begins and ends: settings faults in one line each, SIGTERM and SIGINT as an event."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from services.runtime.fleet_file import FleetFileError

S = TypeVar("S", bound=BaseSettings)
CONFIG_ERROR_EXIT = 78  # EX_CONFIG of sysexits.h: a supervisor must not restart it


def load_settings(settings_class: type[S]) -> S:
    """The settings, or exit status 78 after one line per fault: variable, what is wrong, what is expected."""
    try:
        return settings_class()
    except ValidationError as fault:
        for error in fault.errors(include_url=False):
            name = "CHIMERA_" + "_".join(str(part) for part in error["loc"]).upper()
            print(f"{name}: {error['msg']}", file=sys.stderr)
        raise SystemExit(CONFIG_ERROR_EXIT) from None


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; a second signal changes nothing."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _spare_the_collector() -> None:
    """Requests and batches make thousands of objects that die with them, and hardly a cycle: looking through
    them on the way was a third of the bookkeeper's CPU time (measured)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a service's main coroutine on uvloop; configuration faults end with status 78 and no traceback."""
    _spare_the_collector()
    try:
        uvloop.run(main())
    except FleetFileError as fault:
        print(fault, file=sys.stderr)
        raise SystemExit(CONFIG_ERROR_EXIT) from None
