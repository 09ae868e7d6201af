"""Planning, applying and checking topics on both brokers."""

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from infra.process import free_port
from schemas.topics import TopicNames, TopicSpec, fleet_topics
from services.adapters.kafka import topic_admin
from services.adapters.kafka.topic_plan import Difference
from services.adapters.kafka.traits import traits_of
from services.ports import BusError
from tests.broker_under_test import BrokerUnderTest


async def _with_admin(bootstrap_servers: str, method: str, argument: Any) -> Any:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        return await getattr(admin, method)(argument)
    finally:
        await admin.close()


async def _config(bootstrap_servers: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    (response,) = await _with_admin(bootstrap_servers, "describe_configs", [resource])
    return {key: value for key, value, *_ in response.resources[0][4]}


async def test_a_fleet_is_planned_applied_and_then_checks(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    """The plan changes nothing; after apply nothing is left to do, and a second apply does nothing."""
    _, bootstrap, traits, _ = broker
    topics = fleet_topics(TopicNames(fleet_prefix), ["chat-fast"], 4)
    first = await topic_admin.plan(topics, bootstrap, traits)
    assert {spec.name for spec in first.create} == {spec.name for spec in topics}
    assert len(await topic_admin.check(topics, bootstrap, traits)) == len(topics)
    assert len((await topic_admin.apply(topics, bootstrap, traits)).create) == len(topics)
    assert await topic_admin.check(topics, bootstrap, traits) == ()
    assert (await topic_admin.apply(topics, bootstrap, traits)).empty


async def test_two_may_apply_at_once(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    _, bootstrap, traits, _ = broker
    topics = [TopicSpec(f"{fleet_prefix}race{number}", 2, "raced for") for number in range(5)]
    await asyncio.gather(*(topic_admin.apply(topics, bootstrap, traits) for _ in range(3)))
    assert await topic_admin.check(topics, bootstrap, traits) == ()


async def test_fewer_partitions_are_reported_and_left_alone(
    broker: BrokerUnderTest, fleet_prefix: str
) -> None:
    """Adding partitions moves keys: people decide."""
    _, bootstrap, traits, _ = broker
    name = f"{fleet_prefix}narrow"
    await topic_admin.apply([TopicSpec(name, 2, "narrow")], bootstrap, traits)
    wide = [TopicSpec(name, 6, "wide")]
    fault = Difference(name, "partitions", "2", "at least 6")
    assert (await topic_admin.apply(wide, bootstrap, traits)).mismatch == (fault,)
    assert await topic_admin.check(wide, bootstrap, traits) == (fault,)
    assert await topic_admin.check([TopicSpec(name, 1, "narrower")], bootstrap, traits) == ()


@pytest.mark.parametrize("broker", ["kafka"], indirect=True)
async def test_configs_are_compared_and_changed(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    """Too small a limit is raised, and what somebody else set on the topic stays; a wrong cleanup policy is
    named and left to people."""
    _, bootstrap, traits, _ = broker
    name = f"{fleet_prefix}configs"
    theirs = {"cleanup.policy": "delete", "max.message.bytes": "1000", "segment.ms": "777000"}
    await _with_admin(bootstrap, "create_topics", [NewTopic(name, 1, 1, topic_configs=theirs)])
    ours = {"cleanup.policy": "compact", "max.message.bytes": "1048576", "retention.ms": "1000"}
    topics = [TopicSpec(name, 1, "ours", ours)]

    planned = await topic_admin.plan(topics, bootstrap, traits)
    size = Difference(name, "max.message.bytes", "1000", "at least 1048576")
    policy = Difference(name, "cleanup.policy", "delete", "compact")
    assert (planned.change, planned.mismatch) == ((size,), (policy,))
    assert str(size) == f"topic {name}: max.message.bytes is 1000, expected at least 1048576"

    await topic_admin.apply(topics, bootstrap, traits)
    assert await topic_admin.check(topics, bootstrap, traits) == (policy,)
    config = await _config(bootstrap, name)
    assert (config["segment.ms"], config["cleanup.policy"]) == ("777000", "delete")


@pytest.mark.parametrize("broker", ["local"], indirect=True)
async def test_the_local_broker_is_not_asked_for_configs(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    """It keeps none, so none can be wrong."""
    _, bootstrap, traits, _ = broker
    name = f"{fleet_prefix}configs"
    await topic_admin.apply([TopicSpec(name, 1, "plain")], bootstrap, traits)
    strict = [TopicSpec(name, 1, "strict", {"cleanup.policy": "compact", "max.message.bytes": "5"})]
    assert await topic_admin.check(strict, bootstrap, traits) == ()


@pytest.mark.parametrize("broker", ["kafka"], indirect=True)
async def test_a_refused_topic_is_named(broker: BrokerUnderTest, fleet_prefix: str) -> None:
    bad = [TopicSpec(f"{fleet_prefix}bad", 1, "bad", {"cleanup.policy": "sometimes"})]
    with pytest.raises(BusError, match=f"creating {fleet_prefix}bad: .*sometimes"):
        await topic_admin.apply(bad, broker.bootstrap_servers, broker.traits)


async def test_a_broker_that_is_away_is_a_bus_error() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    with pytest.raises(BusError, match=bootstrap):
        await topic_admin.check([], bootstrap, traits_of("external"))
