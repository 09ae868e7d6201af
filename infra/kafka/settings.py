"""What a KRaft node is told: the properties and JVM flags, as pure functions of a few values.

One node is its own quorum. Several nodes (same cluster id, one directory and two ports each) differ in these
functions only: give each the whole list of voters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
OFFSETS_PARTITIONS = 4  # infra/broker_ready.py asks the coordinators of four

# A fixed id: the data directory, not the id, tells clusters apart here, and a restart must find the same one.
CLUSTER_ID = "Y2hpbWVyYS1sb2NhbC0wMQ"


@dataclass(frozen=True, slots=True)
class Node:
    """One broker-and-controller: its id and its two ports on 127.0.0.1."""

    node_id: int
    port: int
    controller_port: int


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A node, all voters of its quorum (itself included), and where it keeps its data."""

    node: Node
    voters: tuple[Node, ...]
    data_dir: Path
    benchmark: bool = False

    @property
    def replication(self) -> int:
        """Copies of internal topics and default for new ones: 3 from three nodes on, else 1."""
        return 3 if len(self.voters) >= 3 else 1


def server_properties(settings: NodeSettings) -> dict[str, str]:
    """Return the contents of server.properties."""
    node, replication = settings.node, settings.replication
    min_in_sync = str(max(1, replication - 1))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},CONTROLLER://{LOOPBACK}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{node.port},CONTROLLER://{LOOPBACK}:{node.controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        **_quorum(settings.voters),
        "log.dirs": str(settings.data_dir / "log"),
        "auto.create.topics.enable": "false",
        "default.replication.factor": str(replication),
        "min.insync.replicas": min_in_sync,
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "offsets.topic.replication.factor": str(replication),
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replication),
        "transaction.state.log.min.isr": min_in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": str(replication),
        "share.coordinator.state.topic.min.isr": min_in_sync,
        # Committed offsets must outlive the longest deadline (7 d) and a day, even of a group that is away.
        "offsets.retention.minutes": str(14 * 24 * 60),
        **_sessions(len(settings.voters)),
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _quorum(voters: Sequence[Node]) -> dict[str, str]:
    if len(voters) == 1:  # formatted with --standalone: the quorum is in its own log
        return {"controller.quorum.bootstrap.servers": f"{LOOPBACK}:{voters[0].controller_port}"}
    return {
        "controller.quorum.voters": ",".join(f"{v.node_id}@{LOOPBACK}:{v.controller_port}" for v in voters),
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "2000",
    }


def _sessions(nodes: int) -> dict[str, str]:
    # After kill -9 a broker may register again only when its old session is over: 9 s by default. With others
    # a session must outlast what a busy machine keeps a node from saying: each one lost moves leaders.
    if nodes == 1:
        return {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "400"}
    return {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def properties_text(properties: dict[str, str]) -> str:
    """Return the text of a Java properties file; backslashes are escaped, nothing else here needs it."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())


def format_command(settings: NodeSettings, libs: Path, properties_path: Path) -> list[str]:
    """Return the command that formats an empty data directory and leaves a formatted one as it is."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_quiet(), "-cp", f"{libs}/*"]
    command += ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", CLUSTER_ID]
    command += ["--standalone"] if len(settings.voters) == 1 else []
    return [*command, "-c", str(properties_path)]


def broker_command(settings: NodeSettings, libs: Path, properties_path: Path) -> list[str]:
    """Return the command that runs the broker: short start and little memory, or (benchmark) full speed."""
    flags = ["-Xms128m", "-Xmx512m"] if settings.benchmark else _small_flags()
    return ["java", *flags, *_quiet(), "-cp", f"{libs}/*", "kafka.Kafka", str(properties_path)]


def _small_flags() -> list[str]:
    return ["-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _quiet() -> list[str]:
    return ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Djava.awt.headless=true"]
