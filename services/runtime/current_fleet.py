"""The fleet file as it is now: read again when it changed, and kept as it was where the new one is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from services.core.fleet import Fleet
from services.runtime.fleet_file import FleetFileError, load_fleet

log = structlog.get_logger(__name__)
_LOOK_EVERY_S = 1.0
_Stamp = tuple[int, int, int]


class CurrentFleet:
    """`now` is replaced whole; whoever needs one fleet for a while takes it once.

    Prefix and partitions stay what they were: every position in every log hangs on them.
    """

    def __init__(self, fleet: Fleet, file: Path | None = None) -> None:
        self.now = fleet
        self._file = file
        self._stamp = None if file is None else _stamp(file)
        self.listeners: list[Callable[[Fleet], None]] = []

    async def follow(self) -> None:
        """Until cancelled, with a file or without."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._file is not None:
                self.look(self._file)

    def look(self, file: Path) -> bool:
        """Takes over what the file says, if that is new and right; whether it was."""
        stamp = _stamp(file)
        if stamp is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            fleet = load_fleet(file)
        except FleetFileError as fault:
            log.error("the new fleet file is wrong, the old one stands", fault=str(fault))
            return False
        if (fleet.prefix, fleet.partitions) != (self.now.prefix, self.now.partitions):
            log.error("prefix and partitions change with a restart only, the old fleet file stands")
            return False
        self.now = fleet
        log.info("fleet file taken over", pools=[pool.name for pool in fleet.pools])
        for listener in self.listeners:
            listener(fleet)
        return True


def _stamp(file: Path) -> _Stamp | None:
    """None where there is no file just now: it is being replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
