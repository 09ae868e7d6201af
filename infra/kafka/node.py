"""Run one Apache Kafka node on loopback, and do to it what faults do: kill, freeze, restart on its data."""

import asyncio
import subprocess
from pathlib import Path
from typing import Self

from infra.broker_ready import until_ready
from infra.kafka.jars import ensure_jars, missing_programs
from infra.kafka.settings import (
    LOOPBACK,
    Node,
    NodeSettings,
    broker_command,
    format_command,
    properties_text,
    server_properties,
)
from infra.launcher import Launcher
from infra.process import ProcessFailedError, free_port

_READY_TIMEOUT_S = 90.0
_FORMAT_TIMEOUT_S = 60.0


def available() -> str | None:
    """Return why Apache Kafka cannot run here (no java, no mvn), or None."""
    return missing_programs()


def single_node(data_dir: Path, *, port: int | None = None, benchmark: bool = False) -> NodeSettings:
    """Return the settings of a node that is its own quorum, on `port` or a free one."""
    node = Node(node_id=1, port=port if port is not None else free_port(), controller_port=free_port())
    return NodeSettings(node=node, voters=(node,), data_dir=data_dir, benchmark=benchmark)


class KafkaNode(Launcher):
    """One node; it keeps its port and data over stop, kill and start. Its log is `data_dir/broker.log`.

    What it acknowledged is in the data directory or the page cache: it comes back after a kill.
    """

    stop_grace_s = 15.0

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        super().__init__(f"kafka on port {settings.node.port}", settings.data_dir / "broker.log")

    @classmethod
    def single(cls, data_dir: Path, *, port: int | None = None, benchmark: bool = False) -> Self:
        """Return a node that is its own cluster. `benchmark`: full compiler, G1, 512 MiB of heap."""
        return cls(single_node(data_dir, port=port, benchmark=benchmark))

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients."""
        return f"{LOOPBACK}:{self._settings.node.port}"

    async def start(self) -> None:
        """Fetch the jars if need be, format an empty directory, start, and return when the broker serves.

        Raises JarsUnavailableError, or ProcessFailedError with the end of the broker's log.
        """
        libs = await asyncio.to_thread(ensure_jars)
        properties_path = self._write_properties()
        await self._format(libs, properties_path)

        async def serves() -> None:
            # Of several nodes the first answer only when a majority is there: their launcher waits for all.
            await until_ready(self._child, self.bootstrap_servers, _READY_TIMEOUT_S)

        await self._start(broker_command(self._settings, libs, properties_path), serves)

    def _write_properties(self) -> Path:
        self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        path = self._settings.data_dir / "server.properties"
        path.write_text(properties_text(server_properties(self._settings)))
        return path

    async def _format(self, libs: Path, properties_path: Path) -> None:
        if (self._settings.data_dir / "log" / "meta.properties").exists():
            return  # saves a JVM start (0.7 s) on every restart
        command = format_command(self._settings, libs, properties_path)
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise ProcessFailedError(f"formatting {self._settings.data_dir}: {done.stdout}{done.stderr}")
