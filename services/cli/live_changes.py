"""A fleet file that changes while its fleet runs: pools come, go and are replaced; a change that fails is
taken back.

Law: the routers hear of a pool only when its worker is ready, and a worker goes only when another one has its
lanes or nothing waits on them any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import yaml

from infra.process import ProcessFailedError, free_port
from services.adapters.kafka.topic_admin import apply
from services.cli.first_question import warm_up
from services.cli.fleet_change import FleetChange, compare
from services.cli.pool_order import give_order, take_back
from services.cli.processes import ProcessSpec, StateDir, launched, model_processes, worker_process
from services.cli.removal import emptied
from services.cli.running_fleet import find_fleet
from services.cli.supervisor import Supervised, start_all, stop_all
from services.ports import BusError
from services.runtime.fleet_file import FleetFileError, missing_keys, read_fleet_entry, to_fleet
from services.runtime.fleet_schema import FleetEntry

_ROUTERS_READ_S = 2.5  # they look at the file every second
_EMPTIED_WITHIN_S = 60.0
# What a change can fail of while the fleet works on; no model server or no broker is no reason to stop it.
_TAKEN_BACK = (ProcessFailedError, FleetFileError, BusError, httpx.HTTPError, OSError)


@dataclass(slots=True)
class PoolProcesses:
    """What runs for the pools: model servers and workers by pool, and the ports of the former."""

    models: dict[str, Supervised] = field(default_factory=dict)
    workers: dict[str, Supervised] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    async def stop(self) -> None:
        await stop_all(list(self.workers.values()))
        await stop_all(list(self.models.values()))

    def replaced(self, change: FleetChange, begun: PoolProcesses) -> PoolProcesses:
        """Takes in what began; returns what that replaces, and what goes: the caller stops it."""
        old = PoolProcesses()
        for pool in (*change.changed, *change.removed):
            if pool in self.workers:
                old.workers[pool] = self.workers.pop(pool)
            if pool in self.models:
                old.models[pool] = self.models.pop(pool)
        self.models |= begun.models
        self.workers |= begun.workers
        self.ports |= begun.ports
        return old

    async def end(self, pool: str) -> None:
        """The worker first: it needs its model to finish."""
        for process in (self.workers.get(pool), self.models.get(pool)):
            if process is not None:
                await process.stop()


class LiveChanges:
    """`look` between other work: it returns at once where the file is as it was."""

    def __init__(
        self,
        file: Path,
        entry: FleetEntry,
        state: StateDir,
        processes: PoolProcesses,
        shared: Callable[[], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self._file, self.entry, self._state = file, entry, state
        self._processes, self._shared, self._say = processes, shared, say
        self._stamp = _stamp(file)
        self._version = 0

    async def look(self) -> bool:
        """Whether something was changed."""
        stamp = _stamp(self._file)
        if stamp is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            new = read_fleet_entry(self._file)
        except FleetFileError as fault:
            self._say(f"the changed fleet file is wrong, nothing is changed:\n{fault}")
            return False
        change = compare(self.entry, new)
        if change.fixed:
            self._say(f"{', '.join(change.fixed)}: only a restart changes that; nothing is changed")
            return False
        if new == self.entry:
            return False
        missing = missing_keys(to_fleet(new), os.environ)
        if missing:
            self._say("\n".join(["nothing is changed:", *missing]))
            return False
        return await self._apply(new, change)

    async def _apply(self, new: FleetEntry, change: FleetChange) -> bool:
        self._say(f"fleet file changed: {change}")
        begun = PoolProcesses()
        try:
            effective = await self._begin(new, change, begun)
        except _TAKEN_BACK as fault:
            await begun.stop()
            self._say(f"the change is taken back, the fleet runs as before: {fault}")
            return False
        except BaseException:
            await begun.stop()
            raise
        publish(self._state.fleet_file, effective)
        self.entry = new
        old = self._processes.replaced(change, begun)
        try:
            await asyncio.sleep(_ROUTERS_READ_S)
            await self._end(old, change)
        except BusError as fault:
            self._say(f"what the pools taken out leave behind is not known: {fault}")
        finally:
            await old.stop()
        self._say("fleet file taken over")
        return True

    async def _begin(self, new: FleetEntry, change: FleetChange, begun: PoolProcesses) -> FleetEntry:
        """Everything new is ready; the routers do not know of it yet."""
        coming = {*change.added, *change.changed}
        begun.ports = {pool.name: free_port() for pool in new.pools if pool.launch and pool.name in coming}
        ports = {**self._processes.ports, **begun.ports}
        effective = launched(new, ports)
        running = find_fleet(self._state.path, self._shared())
        left = await apply(to_fleet(effective).topics(), running.bootstrap_servers, running.traits)
        if left.mismatch:
            raise FleetFileError("\n".join(str(fault) for fault in left.mismatch))
        begun.models = self._supervised(model_processes(new, begun.ports), "model-")
        await start_all(list(begun.models.values()), self._say)
        await asyncio.gather(*(warm_up(f"http://127.0.0.1:{port}") for port in begun.ports.values()))
        self._version += 1
        preview = self._state.path / f"fleet.{self._version}.yaml"
        publish(preview, effective)
        files = {
            "CHIMERA_FLEET_FILE": str(preview),
            "CHIMERA_FLEET_FOLLOW_FILE": str(self._state.fleet_file),
        }
        specs = [worker_process(pool, self._shared(), free_port, **files) for pool in sorted(coming)]
        begun.workers = self._supervised(specs, "worker-")
        await start_all(list(begun.workers.values()), self._say)
        return effective

    def _supervised(self, specs: list[ProcessSpec], prefix: str) -> dict[str, Supervised]:
        """By pool; a log of its own for each version, for the old one may still be written."""
        made = {}
        for spec in specs:
            pool = spec.name.removeprefix(prefix)
            numbered = replace(spec, name=f"{spec.name}.{self._version + 1}")
            made[pool] = Supervised(numbered, self._state.logs, self._say)
        return made

    async def _end(self, old: PoolProcesses, change: FleetChange) -> None:
        for pool in change.changed:
            await old.end(pool)
        for pool in change.removed:
            running = find_fleet(self._state.path, self._shared())
            await give_order(running, pool, "draining", "removed from the fleet file")
            left = await emptied(running, pool, within_s=_EMPTIED_WITHIN_S)
            await old.end(pool)
            if left:
                self._say(
                    f"{left} tasks still wait on the lanes of {pool}: add the pool again to have them done"
                )
            await take_back(running, pool)


def publish(path: Path, entry: FleetEntry) -> None:
    """Written whole and put in place at once: nobody reads half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(yaml.safe_dump(entry.model_dump(exclude_none=True), sort_keys=False))
    os.replace(partial, path)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
