"""The broker behind one `chimera up`: started here, or somebody else's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from infra.kafka.node import KafkaNode
from infra.kafka.settings import Node, NodeSettings
from infra.local_broker import LocalBroker
from infra.process import free_port
from services.adapters.kafka.traits import BrokerKind
from services.cli.processes import StateDir

LOCAL_BROKER_LIMIT_BYTES = 1 << 30


class Broker(Protocol):
    """A broker that may have to be started, watched and stopped."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def running(self) -> bool: ...
    @property
    def pid(self) -> int: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class ExternalBroker:
    """A cluster that others run: never started, stopped or blamed here."""

    running = True
    pid = 0

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def make_broker(kind: BrokerKind, state: StateDir, bootstrap_servers: str | None) -> Broker:
    """The broker of that kind. Raises ValueError where `external` has no address."""
    if kind == "local":
        return LocalBroker(state.logs)
    if kind == "kafka":
        return KafkaNode(_kafka_settings(state.kafka))
    if not bootstrap_servers:
        raise ValueError("--broker external: expected CHIMERA_KAFKA_BOOTSTRAP_SERVERS=host:port[,host:port]")
    return ExternalBroker(bootstrap_servers)


def _kafka_settings(data_dir: Path) -> NodeSettings:
    """A node on the ports that its data was formatted with: the quorum's record of itself names them."""
    ports_file = data_dir / "ports.json"
    if ports_file.exists():
        ports = json.loads(ports_file.read_text())
    else:
        ports = {"port": free_port(), "controller_port": free_port()}
        data_dir.mkdir(parents=True, exist_ok=True)
        ports_file.write_text(json.dumps(ports))
    node = Node(node_id=1, port=ports["port"], controller_port=ports["controller_port"])
    return NodeSettings(node=node, voters=(node,), data_dir=data_dir)


def outgrown(broker: Broker) -> bool:
    """Whether the in-memory broker, which never frees a record, holds more than it may."""
    return (
        isinstance(broker, LocalBroker) and broker.running and broker.rss_bytes() > LOCAL_BROKER_LIMIT_BYTES
    )
