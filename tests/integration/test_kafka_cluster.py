"""Three Kafka nodes on one machine: what they acknowledged survives the loss of any one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from infra.kafka.cluster import KafkaCluster
from schemas.topics import TopicNames, TopicSpec, fleet_topics
from services.adapters.kafka import topic_admin
from services.adapters.kafka.traits import traits_of
from services.ports import BusError

pytestmark = pytest.mark.asyncio(loop_scope="module")
TRAITS = traits_of("kafka")
PATIENCE_S = 120.0
COMMITTED = 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    kafka_possible: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KafkaCluster]:
    """One cluster for this module; each test leaves all of its nodes serving."""
    async with KafkaCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


async def _topic(cluster: KafkaCluster, name: str, partitions: int = 6) -> str:
    await topic_admin.apply([TopicSpec(name, partitions, "of a test")], cluster.bootstrap_servers, TRAITS)
    return name


async def _until(holds: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while not holds():
        assert loop.time() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        await asyncio.sleep(0.05)


async def _values(cluster: KafkaCluster, topic: str, partitions: int = 6) -> list[bytes]:
    """Every record of the topic, read by a plain consumer to the ends that the cluster names."""
    client = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    await client.start()
    try:
        everything = [TopicPartition(topic, index) for index in range(partitions)]
        client.assign(everything)
        ends = await client.end_offsets(everything)
        values: list[bytes] = []
        while any([await client.position(one) < ends[one] for one in everything]):
            for batch in (await client.getmany(timeout_ms=200)).values():
                values += [record.value for record in batch]
        return values
    finally:
        await client.stop()


class _Sender:
    """Numbers, sent one after another and each kept on sending until it is acknowledged."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._servers, self._topic = cluster.bootstrap_servers, topic
        self.acknowledged: list[bytes] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._servers, acks="all", enable_idempotence=True, request_timeout_ms=60_000
        )
        await producer.start()
        number = 0
        try:
            while not stop.is_set():
                sending = asyncio.create_task(self._send(producer, b"%d" % number))
                self._under_way.add(sending)
                number += 1
                await asyncio.sleep(0.01)
            await asyncio.gather(*self._under_way)
        finally:
            await producer.stop()

    async def _send(self, producer: Any, value: bytes) -> None:
        await producer.send_and_wait(self._topic, value)
        self.acknowledged.append(value)


async def test_topics_of_a_fleet_have_three_copies_of_which_two_must_be_there(
    cluster: KafkaCluster, fleet_prefix: str
) -> None:
    """So acks=all is worth what it says; and the services find nothing amiss."""
    topics = fleet_topics(TopicNames(fleet_prefix), ["chat-fast"], 2)
    await topic_admin.apply(topics, cluster.bootstrap_servers, TRAITS)
    names = [topic.name for topic in topics]
    expected = ({name: {3} for name in names}, {name: {"2"} for name in names})
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    await admin.start()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    try:  # each request goes to any node, and one that lags behind does not know all of them yet
        while (seen := await _copies(admin, names)) != expected and loop.time() < deadline:
            await asyncio.sleep(0.1)
    finally:
        await admin.close()
    assert seen == expected
    while faults := await _faults(cluster, topics):
        assert loop.time() < deadline, faults
        await asyncio.sleep(0.1)


async def _copies(admin: Any, names: list[str]) -> tuple[dict[str, set[int]], dict[str, set[str]]]:
    """By topic: how many copies its partitions have, and how many of them must be there."""
    found = await admin.describe_topics(names)
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    answers = [one for response in await admin.describe_configs(asked) for one in response.resources]
    return (
        {topic["topic"]: {len(part["replicas"]) for part in topic["partitions"]} for topic in found},
        {one[3]: {entry[1] for entry in one[4] if entry[0] == "min.insync.replicas"} for one in answers},
    )


async def _faults(cluster: KafkaCluster, topics: Sequence[TopicSpec]) -> object:
    try:
        return await topic_admin.check(topics, cluster.bootstrap_servers, TRAITS)
    except BusError as error:
        return error


async def test_nothing_is_lost_or_doubled_while_nodes_die_hang_and_come_back(
    cluster: KafkaCluster, fleet_prefix: str
) -> None:
    """acks=all and idempotent: one node killed and started, then another that hangs for 6 s."""
    topic = await _topic(cluster, f"{fleet_prefix}faults")
    sender, stop = _Sender(cluster, topic), asyncio.Event()
    sending = asyncio.create_task(sender.run(stop))
    await _until(lambda: len(sender.acknowledged) > 50, "the first acknowledgements")
    await cluster.nodes[0].kill()
    so_far = len(sender.acknowledged)
    await _until(lambda: len(sender.acknowledged) > so_far + 50, "acknowledgements with a node away")
    await cluster.nodes[0].start()
    await cluster.until_serves()
    cluster.nodes[1].freeze()
    try:
        await asyncio.sleep(6.0)
    finally:
        cluster.nodes[1].thaw()
    await cluster.until_serves()
    stop.set()
    await asyncio.wait_for(sending, PATIENCE_S)
    values = await _values(cluster, topic)
    assert set(values) >= set(sender.acknowledged)
    assert len(values) == len(set(values))


async def test_the_leader_of_a_partition_moves_when_its_node_dies(
    cluster: KafkaCluster, fleet_prefix: str
) -> None:
    topic = await _topic(cluster, f"{fleet_prefix}leader")
    before = await cluster.leaders(topic)
    dead = before[0]
    await cluster.nodes[dead].kill()
    try:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while {-1, dead} & set((await cluster.leaders(topic)).values()):
            assert loop.time() < deadline
            await asyncio.sleep(0.1)
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all")
        async with producer:
            for partition in before:
                await producer.send_and_wait(topic, b"x", partition=partition)
    finally:
        await cluster.nodes[dead].start()
        await cluster.until_serves()
    assert len(await _values(cluster, topic)) == len(before)


async def test_a_group_goes_on_when_the_node_of_its_coordinator_dies(
    cluster: KafkaCluster, fleet_prefix: str
) -> None:
    """It reads what comes after, and its committed offset is known to the next coordinator."""
    topic = await _topic(cluster, f"{fleet_prefix}group", partitions=1)
    group = f"{fleet_prefix}readers"
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for number in range(COMMITTED):
            await producer.send_and_wait(topic, b"%d" % number)
        async with _member(cluster, topic, group) as member:
            await _read(member, COMMITTED)
            await member.commit()
            dead = await cluster.coordinator(group)
            await cluster.nodes[dead].kill()
            try:
                await producer.send_and_wait(topic, b"after")
                assert [record.value for record in await _read(member, 1)] == [b"after"]
                assert await cluster.coordinator(group) != dead
            finally:
                await cluster.nodes[dead].start()
                await cluster.until_serves()
            await _committed(member)
        async with _member(cluster, topic, group) as successor:
            assert await successor.committed(TopicPartition(topic, 0)) == COMMITTED + 1


def _member(cluster: KafkaCluster, topic: str, group: str) -> Any:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
    )


async def _read(member: Any, count: int) -> list[Any]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    records: list[Any] = []
    while len(records) < count:
        assert loop.time() < deadline, f"{len(records)} of {count} records"
        for batch in (await member.getmany(timeout_ms=200)).values():
            records += batch
    return records


async def _committed(member: Any) -> None:
    """Commits, however long the group takes to find its new coordinator."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    while True:
        try:
            await member.commit()
        except KafkaError:
            assert loop.time() < deadline
            await asyncio.sleep(0.2)
        else:
            return
