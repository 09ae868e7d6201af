"""Plan, apply and check a fleet's topics on a broker (`chimera topics`, and every service before it starts).

All raise BusError when the broker does not answer or refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from schemas.topics import TopicSpec
from services.adapters.kafka.topic_plan import Difference, FoundTopic, Plan, compare, wanted
from services.adapters.kafka.traits import BrokerTraits
from services.ports import BusError

_REQUEST_TIMEOUT_MS = 15_000
_LED_TIMEOUT_S = 15.0
_LED_PAUSE_S = 0.05
_MOST_COPIES = 3
_SET_ON_TOPIC = 1  # config_source: DYNAMIC_TOPIC_CONFIG


async def plan(topics: Sequence[TopicSpec], bootstrap: str, traits: BrokerTraits) -> Plan:
    """Return what `apply` would create and change, and what is wrong beyond that; changes nothing."""
    async with _admin(bootstrap) as admin:
        found, replication = await _look(admin, topics, traits)
        return compare(topics, found, replication=replication, topic_configs=traits.topic_configs)


async def apply(topics: Sequence[TopicSpec], bootstrap: str, traits: BrokerTraits) -> Plan:
    """Create and change what `plan` says, wait until every partition has a leader, and return what was done;
    its `mismatch` is left to people. May run twice, also at the same time."""
    async with _admin(bootstrap) as admin:
        found, replication = await _look(admin, topics, traits)
        todo = compare(topics, found, replication=replication, topic_configs=traits.topic_configs)
        await _create(admin, todo)
        await _alter(admin, topics, todo, found)
        await _until_led(admin, todo.create)
        return todo


async def check(topics: Sequence[TopicSpec], bootstrap: str, traits: BrokerTraits) -> tuple[Difference, ...]:
    """Return everything that is not as it must be, missing topics included; empty: services may start."""
    return (await plan(topics, bootstrap, traits)).faults()


@asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=_REQUEST_TIMEOUT_MS)
    try:
        await admin.start()
        yield admin
    except (KafkaError, OSError, TimeoutError) as error:
        raise BusError(f"topics on {bootstrap}: {error}") from error
    finally:
        await admin.close()


async def _look(
    admin: Any, specs: Sequence[TopicSpec], traits: BrokerTraits
) -> tuple[dict[str, FoundTopic], int]:
    brokers = len((await admin.describe_cluster())["brokers"])
    # Said outright: the request version that leaves it to the broker (-1) is newer than aiokafka's.
    return await _found(admin, specs, traits), min(_MOST_COPIES, brokers)


async def _found(admin: Any, specs: Sequence[TopicSpec], traits: BrokerTraits) -> dict[str, FoundTopic]:
    # All topics are asked for: asking for one by name creates it on brokers that create what is asked for.
    names = {spec.name for spec in specs}
    partitions = {
        topic["topic"]: len(topic["partitions"])
        for topic in await admin.describe_topics()
        if topic["topic"] in names
    }
    if not (traits.topic_configs and partitions):
        return {name: FoundTopic(name, count) for name, count in partitions.items()}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in partitions]
    found = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries in response.resources:
            _raise_for(code, f"configs of {name}: {message}")
            found[name] = _found_topic(name, partitions[name], entries)
    return found


def _found_topic(name: str, partitions: int, entries: Sequence[tuple[Any, ...]]) -> FoundTopic:
    return FoundTopic(
        name,
        partitions,
        config={key: value or "" for key, value, *_ in entries},
        overridden=frozenset(key for key, _, _, source, *_ in entries if source == _SET_ON_TOPIC),
    )


async def _create(admin: Any, todo: Plan) -> None:
    if not todo.create:
        return
    topics = [
        NewTopic(spec.name, spec.partitions, todo.replication, topic_configs=dict(spec.config))
        for spec in todo.create
    ]
    response = await admin.create_topics(topics)
    for name, code, *message in response.topic_errors:
        if code != TopicAlreadyExistsError.errno:  # somebody else was faster; the plan after this looks at it
            _raise_for(code, f"creating {name}: {' '.join(filter(None, message))}")


async def _alter(admin: Any, specs: Sequence[TopicSpec], todo: Plan, found: Mapping[str, FoundTopic]) -> None:
    if not todo.change:
        return
    expected = {spec.name: spec.config for spec in wanted(specs, todo.replication)}
    resources = []
    for name in {difference.topic for difference in todo.change}:
        # AlterConfigs replaces all that is set on a topic: what is not repeated falls back to the default.
        config = {key: found[name].config[key] for key in found[name].overridden}
        config |= {d.key: expected[name][d.key] for d in todo.change if d.topic == name}
        resources.append(ConfigResource(ConfigResourceType.TOPIC, name, config))
    for response in await admin.alter_configs(resources):
        for code, message, _, name in response.resources:
            _raise_for(code, f"changing {name}: {message}")


async def _until_led(admin: Any, specs: Sequence[TopicSpec]) -> None:
    """A topic is created before its partitions have leaders: a producer would fail or wait in between."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LED_TIMEOUT_S
    missing = {spec.name for spec in specs}
    while missing:
        for topic in await admin.describe_topics():
            if topic["partitions"] and all(p["leader"] >= 0 for p in topic["partitions"]):
                missing.discard(topic["topic"])
        if missing and loop.time() > deadline:
            raise BusError(f"no leader after {_LED_TIMEOUT_S:.0f} s for {', '.join(sorted(missing))}")
        if missing:
            await asyncio.sleep(_LED_PAUSE_S)


def _raise_for(code: int, what: str) -> None:
    if code:
        raise BusError(f"{what} ({for_code(code).__name__})")
