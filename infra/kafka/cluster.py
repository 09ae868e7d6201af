"""Several Apache Kafka nodes on one machine: one quorum, each record on three of them, faults for one or all.

Law: with a replication of three, acks=all means at least two nodes have the record (min.insync.replicas).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from infra.kafka.node import KafkaNode
from infra.kafka.settings import Node, NodeSettings
from infra.process import ProcessFailedError, free_port

T = TypeVar("T")
_SERVES_TIMEOUT_S = 90.0
_PAUSE_S = 0.1
_REQUEST_TIMEOUT_MS = 5000


class KafkaCluster:
    """`count` nodes, a port and a directory below `folder` each. `nodes[i]` is what a fault is done to.

    Not bound to an event loop. What it acknowledged comes back after a kill of any node, or of all of them.
    """

    def __init__(self, folder: Path, *, count: int = 3, benchmark: bool = False) -> None:
        ports = _free_ports(2 * count)
        voters = tuple(Node(index + 1, ports[2 * index], ports[2 * index + 1]) for index in range(count))
        self.nodes: tuple[KafkaNode, ...] = tuple(
            KafkaNode(NodeSettings(voter, voters, folder / f"node{voter.node_id}", benchmark))
            for voter in voters
        )

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every node: a client finds the others while one is away."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the nodes that run."""
        return {f"broker-{index}": node.pid for index, node in enumerate(self.nodes, 1) if node.running}

    @property
    def running(self) -> bool:
        """True while every node's process is there, also frozen ones."""
        return all(node.running for node in self.nodes)

    async def start(self) -> None:
        """Starts what does not run, side by side, and returns when the cluster serves.

        Raises ProcessFailedError (and stops what it has started) or JarsUnavailableError.
        """
        away = [node for node in self.nodes if not node.running]
        # None answers before a majority is there: one after the other they would wait for ever.
        starting = [asyncio.create_task(node.start()) for node in away]
        try:
            await asyncio.gather(*starting)
            await self.until_serves()
        except BaseException:
            # Where one fails the others are still at it, and would start once they are formatted.
            for start in starting:
                start.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await asyncio.gather(*(node.kill() for node in away))
            raise

    async def until_serves(self, timeout_s: float = _SERVES_TIMEOUT_S) -> None:
        """Returns when every node is in the cluster and every copy of every partition is in sync: from then
        on it can lose any one node. Raises ProcessFailedError with what was missing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            missing = await self._missing()
            if missing is None:
                return
            if loop.time() > deadline:
                raise ProcessFailedError(f"the cluster does not serve after {timeout_s:.0f} s: {missing}")
            await asyncio.sleep(_PAUSE_S)

    async def leaders(self, topic: str) -> dict[int, int]:
        """The index in `nodes` of the leader of each partition; -1 where there is none."""

        async def ask(admin: Any) -> Any:
            (found,) = await admin.describe_topics([topic])
            return found

        found = await self._answer(ask)
        return {part["partition"]: max(-1, part["leader"] - 1) for part in found["partitions"]}

    async def coordinator(self, group: str) -> int:
        """The index in `nodes` of the coordinator of a group."""

        async def ask(admin: Any) -> int:
            return int(await admin.find_coordinator(group)) - 1

        return await self._answer(ask)

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL after a grace."""
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def kill(self) -> None:
        """SIGKILL to all at once."""
        await asyncio.gather(*(node.kill() for node in self.nodes))

    def freeze(self) -> None:
        """SIGSTOP to all."""
        for node in self.nodes:
            node.freeze()

    def thaw(self) -> None:
        """SIGCONT to all."""
        for node in self.nodes:
            node.thaw()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The quorum goes away while they stop, so the last would wait for it until its grace is over.
        await self.kill()

    async def _answer(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """From whichever node answers: the client draws one, and that may be the one that is away."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SERVES_TIMEOUT_S
        while True:
            try:
                async with _Admin(self.bootstrap_servers) as admin:
                    return await ask(admin)
            except (KafkaError, OSError, TimeoutError) as error:
                if loop.time() > deadline:
                    raise ProcessFailedError(f"the cluster does not answer: {error!r}") from error
                await asyncio.sleep(_PAUSE_S)

    async def _missing(self) -> str | None:
        try:
            async with _Admin(self.bootstrap_servers) as admin:
                brokers = len((await admin.describe_cluster())["brokers"])
                topics = await admin.describe_topics()
        except (KafkaError, OSError, TimeoutError) as error:
            return repr(error)
        if brokers < len(self.nodes):
            return f"{brokers} of {len(self.nodes)} nodes are in the cluster"
        behind = [
            f"{topic['topic']}-{part['partition']}"
            for topic in topics
            for part in topic["partitions"]
            if part["leader"] < 0 or len(part["isr"]) < len(part["replicas"])
        ]
        return f"{len(behind)} partitions lack a copy, such as {behind[0]}" if behind else None


class _Admin:
    def __init__(self, bootstrap_servers: str) -> None:
        self._client = AIOKafkaAdminClient(
            bootstrap_servers=bootstrap_servers, request_timeout_ms=_REQUEST_TIMEOUT_MS
        )

    async def __aenter__(self) -> Any:
        try:
            await self._client.start()
        except BaseException:
            await self._client.close()
            raise
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    while len(ports) < count:  # nothing listens yet, so the same one may be found twice
        port = free_port()
        if port not in ports:
            ports.append(port)
    return ports
