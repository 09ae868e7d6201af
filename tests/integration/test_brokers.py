"""The launchers of both brokers: they serve, they leave nothing behind, and faults can be done to them."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from infra.process import ProcessFailedError, free_port
from tests.broker_under_test import BrokerUnderTest, RunningBroker, producer, read, reader


async def _create(bootstrap_servers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        response = await admin.create_topics([NewTopic(topic, 4, 1)])
        assert [code for _, code, _ in response.topic_errors] == [0]
    finally:
        await admin.close()


def _listens(bootstrap_servers: str) -> bool:
    host, _, port = bootstrap_servers.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def _gone(pid: int) -> bool:
    """Return whether the process ends (a zombie that its new parent has yet to reap has ended)."""
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_record_comes_back_as_it_was_sent(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    """Partition, key, bytes, headers (binary and empty ones) and timestamp survive the trip."""
    topic = f"{fleet_prefix}trip"
    await _create(broker.bootstrap_servers, topic)
    headers = [("type", b"RunTask"), ("binary", b"\x00\xff"), ("empty", b"")]
    async with producer(broker) as sender:
        sent = await sender.send_and_wait(
            topic, b"value", key=b"key", partition=2, headers=headers, timestamp_ms=1_700_000_000_123
        )
    async with reader(broker, TopicPartition(topic, 2)) as client:
        (record,) = await read(client, 1)
    assert (sent.partition, sent.offset) == (2, 0)
    assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1_700_000_000_123)
    assert list(record.headers) == headers


async def test_a_frozen_broker_thaws(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    """While frozen it acknowledges nothing; what was sent meanwhile is acknowledged after the thaw."""
    topic = f"{fleet_prefix}freeze"
    await _create(broker.bootstrap_servers, topic)
    async with producer(broker) as sender:
        await sender.send_and_wait(topic, b"before", partition=0)
        broker.launcher.freeze()
        try:
            assert broker.launcher.running
            pending = await sender.send(topic, b"frozen", partition=0)
            await asyncio.sleep(0.5)
            assert not pending.done()
        finally:
            broker.launcher.thaw()
        acknowledged = await asyncio.wait_for(pending, 30)
    assert acknowledged.offset == 1


async def _stop_leaves_nothing(launcher: RunningBroker) -> None:
    await launcher.start()
    pid = launcher.pid
    assert launcher.rss_bytes() > 0
    assert _listens(launcher.bootstrap_servers)
    await launcher.stop()
    assert not psutil.pid_exists(pid)
    assert not _listens(launcher.bootstrap_servers)
    assert not launcher.running
    with pytest.raises(ProcessFailedError, match="not running"):
        _ = launcher.pid


async def test_stopping_the_local_broker_leaves_no_process_and_no_port(broker_dir: Path) -> None:
    await _stop_leaves_nothing(LocalBroker(broker_dir))


async def test_a_stopped_local_broker_comes_back_empty_on_its_port(
    broker_dir: Path, fleet_prefix: str
) -> None:
    launcher = LocalBroker(broker_dir)
    await launcher.start()
    try:
        await _create(launcher.bootstrap_servers, f"{fleet_prefix}lost")
        before = (launcher.bootstrap_servers, launcher.pid)
        await launcher.kill()
        await launcher.start()
        assert launcher.bootstrap_servers == before[0]
        assert launcher.pid != before[1]
        await _create(launcher.bootstrap_servers, f"{fleet_prefix}lost")  # refused if it were still there
    finally:
        await launcher.stop()


async def test_kafka_keeps_acknowledged_records_over_kill_and_restart(
    kafka_possible: None, broker_dir: Path, fleet_prefix: str
) -> None:
    """kill -9, start on the same data: same port, same records; then stop, and nothing is left."""
    node = KafkaNode.single(broker_dir)
    topic = f"{fleet_prefix}kept"
    await node.start()
    try:
        await _create(node.bootstrap_servers, topic)
        async with producer(BrokerUnderTest.of("kafka", node)) as sender:
            for number in range(50):
                await sender.send_and_wait(topic, b"%d" % number, partition=1)
        first_pid = node.pid
        await node.kill()
        assert not psutil.pid_exists(first_pid)
        await node.start()
        async with reader(BrokerUnderTest.of("kafka", node), TopicPartition(topic, 1)) as client:
            assert [record.value for record in await read(client, 50)] == [b"%d" % n for n in range(50)]
    finally:
        await node.kill()
    await _stop_leaves_nothing(node)


_LOCAL_PARENT = """
import asyncio, sys
from pathlib import Path
from infra.local_broker import LocalBroker

async def main() -> None:
    broker = LocalBroker(Path(sys.argv[1]))
    await broker.start()
    print(f"local {broker.bootstrap_servers} pid {broker.pid}", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def _started(command: list[str]) -> tuple["subprocess.Popen[str]", int]:
    """Start a program that launches a broker and prints `... pid N`; return it and the broker's pid."""
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline().split()[-1])


async def _end(parent: "subprocess.Popen[str]", number: signal.Signals) -> int:
    parent.send_signal(number)
    code = await asyncio.to_thread(parent.wait, 60)
    assert parent.stdout is not None
    parent.stdout.close()
    return code


async def test_the_local_broker_dies_with_its_parent(broker_dir: Path) -> None:
    """Even SIGKILL of the parent, which can clean up nothing, leaves no broker."""
    parent, pid = _started([sys.executable, "-c", _LOCAL_PARENT, str(broker_dir)])
    assert psutil.pid_exists(pid)
    await _end(parent, signal.SIGKILL)
    assert await _gone(pid)


async def test_kafka_in_the_foreground_ends_on_sigterm_and_dies_with_its_parent(
    kafka_possible: None, broker_dir: Path
) -> None:
    """`python -m infra.kafka`: SIGTERM stops the broker and is exit 0; SIGKILL takes the JVM with it."""
    command = [sys.executable, "-m", "infra.kafka", "--port", str(free_port()), "--data-dir", str(broker_dir)]
    parent, pid = _started(command)
    assert await _end(parent, signal.SIGTERM) == 0
    assert not psutil.pid_exists(pid)
    parent, pid = _started(command)
    await _end(parent, signal.SIGKILL)
    assert await _gone(pid)


async def test_a_broker_that_cannot_start_says_why(broker_dir: Path) -> None:
    """A taken port ends in an error with the broker's own words, and no process."""
    before = set(psutil.Process().children())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        launcher = LocalBroker(broker_dir, port=holder.getsockname()[1])
        with pytest.raises(ProcessFailedError, match=r"[Aa]ddress.*in use"):
            await launcher.start()
    assert not launcher.running
    assert set(psutil.Process().children()) <= before
