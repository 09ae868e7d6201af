"""Strikes what the schedule says, and heals it: by the pids of processes that this run has started."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from infra.process import ProcessFailedError
from loadtest.chaos.evidence import Death
from loadtest.chaos.fleet import WORKERS, ChaosFleet
from loadtest.chaos.schedule import Fault

_RESPAWN_S = 30.0
_POLL_S = 0.05


class Striker:
    """Plays one schedule. `deaths`: what was killed. `unhealed`: what did not come back as it
    should. `log_away`: when brokers were out.

    last_heal_s: when the last fault was over (seconds since the epoch). A killed service is healed when its
    supervisor has started it again, a broker node when it serves.
    """

    def __init__(self, fleet: ChaosFleet, say: Callable[[str], None]) -> None:
        self._fleet, self._say = fleet, say
        self._one_node = asyncio.Lock()  # starting a node takes longer than the schedule can know
        self._began = 0.0
        self._extra = 0
        self.deaths: list[Death] = []
        self.unhealed: list[str] = []
        self.log_away: list[tuple[float, float]] = []
        self.last_heal_s = 0.0

    async def play(self, faults: Sequence[Fault]) -> None:
        """Returns when every fault is over and healed."""
        self._began = time.monotonic()
        self.last_heal_s = time.time()
        await asyncio.gather(*(self._one(fault) for fault in faults))
        await self._fleet.cluster.until_serves()

    async def _one(self, fault: Fault) -> None:
        await self._until(fault.at_s)
        begun = time.monotonic() - self._began
        try:
            await self._doers()[fault.kind](fault)
        except ProcessFailedError as error:
            self.unhealed.append(f"{fault}: {error}")
        self.last_heal_s = max(self.last_heal_s, time.time())
        self._say(
            f"  {begun:5.1f}-{time.monotonic() - self._began:4.1f} s {fault.kind} {fault.target} {fault.mood}"
        )

    def _doers(self) -> dict[str, Callable[[Fault], Awaitable[None]]]:
        return {
            "worker_kill": self._kill,
            "ingress_kill": self._kill,
            "orchestrator_kill": self._kill,
            "worker_freeze": self._freeze,
            "node_kill": self._node,
            "node_freeze": self._node,
            "node_restart": self._node,
            "cluster_restart": self._cluster,
            "rebalance": self._rebalance,
            "database_freeze": self._database,
            "backend": self._backend,
        }

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._began + at_s - time.monotonic()))

    async def _kill(self, fault: Fault) -> None:
        service = self._fleet.stage.services[fault.target]
        pid = service.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        self.deaths.append(Death(fault.target, pid, time.time()))
        deadline = time.monotonic() + _RESPAWN_S
        while service.pid in (None, pid):
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"{fault.target} was not started again")
            await asyncio.sleep(_POLL_S)

    async def _freeze(self, fault: Fault) -> None:
        service = self._fleet.stage.services[fault.target]
        pid = service.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)
        try:
            await self._until(fault.until_s)
        finally:
            if service.pid == pid:
                os.kill(pid, signal.SIGCONT)

    async def _node(self, fault: Fault) -> None:
        async with self._one_node, self._log_away():
            node = self._fleet.cluster.nodes[int(fault.target)]
            if fault.kind == "node_freeze":
                node.freeze()
                try:
                    await asyncio.sleep(fault.until_s - fault.at_s)
                finally:
                    node.thaw()
            elif fault.kind == "node_restart":
                await node.restart()
            else:
                await node.kill()
                await asyncio.sleep(fault.until_s - fault.at_s)
                await node.start()
            self.last_heal_s = max(self.last_heal_s, time.time())
            await self._fleet.cluster.until_serves()

    async def _cluster(self, fault: Fault) -> None:
        async with self._one_node, self._log_away():
            await self._fleet.cluster.kill()
            await asyncio.sleep(fault.until_s - fault.at_s)
            await self._fleet.cluster.start()

    @asynccontextmanager
    async def _log_away(self) -> AsyncIterator[None]:
        began_s = time.time()
        try:
            yield
        finally:
            self.log_away.append((began_s, time.time()))

    async def _rebalance(self, fault: Fault) -> None:
        """One more worker joins the first pool's groups, and leaves them in good order."""
        self._extra += 1
        name, services = f"extra-{self._extra}", self._fleet.stage.services
        try:
            await self._fleet.stage.start_another(WORKERS[0], name)
            await self._until(fault.until_s)
        finally:
            await services.pop(name).stop()

    async def _database(self, fault: Fault) -> None:
        await self._fleet.database.freeze()
        try:
            await self._until(fault.until_s)
        finally:
            self._fleet.database.thaw()

    async def _backend(self, fault: Fault) -> None:
        backend = self._fleet.backends[fault.target]
        await backend.feel(fault.mood, fault.share)
        try:
            await self._until(fault.until_s)
        finally:
            await backend.feel("")
