"""What the bus adapters make of brokers that die, hang, or are not there yet (CASES Q7)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from infra.process import free_port
from services.adapters.kafka.log_reader import KafkaLogReader
from services.adapters.kafka.publisher import KafkaPublisher
from services.adapters.kafka.traits import traits_of
from services.ports import BusError, Commit, GroupSource, InRecord, OutRecord, StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import (
    PATIENCE_S,
    Calls,
    KafkaParts,
    acknowledged,
    poll,
    read,
    send_all,
    until,
    values,
)


def by_value(records: list[InRecord]) -> set[bytes | None]:
    return {record.value for record in records}


async def committed(source: GroupSource, commits: dict[int, Commit]) -> None:
    """Commit, over whatever rebalance the broker's return still causes; polling goes on."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await source.commit(commits)
            except BusError:
                await poll(source)
            else:
                return


async def test_a_killed_broker_that_comes_back_loses_nothing_acknowledged(
    kafka_possible: None, broker_dir: Path, fleet_prefix: str
) -> None:
    """Publisher, source and reader heal by themselves, and commits are where they were."""
    async with KafkaNode.single(broker_dir) as node:
        parts = KafkaParts(fleet_prefix, BrokerUnderTest.of("kafka", node))
        topic = await parts.topic(2)
        publisher = parts.new_publisher()
        source, reader = parts.new_source(topic, parts.named("g")), parts.new_reader(topic, [0, 1])
        for part in (publisher, source, reader):
            parts.stop_later(part)
        await publisher.start()
        await reader.start(at=StartAt("end"))
        calls = Calls()
        await source.start(calls)
        await send_all(publisher, values(topic, 0, 20))
        assert len(await read(source, 20)) == 20
        await source.commit({0: Commit(5, "map"), 1: Commit(0, "before")})
        await node.kill()
        late = OutRecord(topic, None, b"late", partition=1)
        with pytest.raises(BusError):
            await publisher.send(late, timeout_s=0.5)
        await asyncio.gather(acknowledged(publisher, late), node.start())
        for record in values(topic, 0, 10, first=20):
            await acknowledged(publisher, record)
        seen, heard = list[InRecord](), list[InRecord]()
        sent_late = {str(n).encode() for n in range(20, 30)} | {b"late"}
        async with asyncio.timeout(PATIENCE_S):
            while len(by_value(seen)) < 31:
                seen += await poll(reader)
            while not sent_late <= by_value(heard):
                heard += await poll(source)
        await committed(source, {0: Commit(30, "after")})
        await source.stop()
        calls = Calls()
        heir = await parts.source(topic, calls)
        await until(lambda: bool(calls.owned), heir)
        assert (calls.owned[0].offset, calls.owned[0].metadata) == (30, "after")
        assert (calls.owned[1].offset, calls.owned[1].metadata) == (0, "before")
        await parts.stop()


async def test_a_frozen_broker_ends_a_send_by_its_time_out_and_works_again_later(
    broker: BrokerUnderTest, parts: KafkaParts
) -> None:
    topic = await parts.topic(1)
    publisher = await parts.publisher()
    await publisher.send(OutRecord(topic, b"k", b"before"), timeout_s=30)
    broker.launcher.freeze()
    try:
        with pytest.raises(BusError, match="not acknowledged"):
            await publisher.send(OutRecord(topic, b"k", b"during"), timeout_s=0.3)
        with pytest.raises(BusError, match="not acknowledged"):
            await publisher.send(OutRecord(topic, b"k", b"during too"), timeout_s=0.3)
    finally:
        broker.launcher.thaw()
    await publisher.send(OutRecord(topic, b"k", b"after"), timeout_s=30)
    reader = parts.new_reader(topic, [0])
    parts.stop_later(reader)
    await reader.start(at=StartAt("beginning"))
    seen: list[bytes | None] = []
    while b"after" not in seen:
        seen += [record.value for record in await read(reader, 1)]
    assert seen[0] == b"before"


async def test_a_publisher_knows_for_how_long_there_has_been_no_broker(
    broker: BrokerUnderTest, parts: KafkaParts
) -> None:
    topic = await parts.topic(1)
    publisher = KafkaPublisher(
        broker.bootstrap_servers, broker.traits, client_id="left alone", recreate_after_s=0.2
    )
    parts.stop_later(publisher)
    assert publisher.away_s() > 0
    await publisher.start()
    assert publisher.away_s() == 0
    broker.launcher.freeze()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while publisher.away_s() == 0:
                with pytest.raises(BusError):
                    await publisher.send(OutRecord(topic, b"k", b"during"), timeout_s=0.2)
    finally:
        broker.launcher.thaw()
    await acknowledged(publisher, OutRecord(topic, b"k", b"after"))
    assert publisher.away_s() == 0


async def test_a_publisher_started_without_a_broker_waits_for_it(
    tmp_path: Path, fleet_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    publisher = KafkaPublisher(f"127.0.0.1:{port}", traits_of("local"), client_id="early")
    starting = asyncio.create_task(publisher.start())
    await until(lambda: caplog.text.count("the broker does not answer") > 1)
    assert not starting.done()
    async with LocalBroker(tmp_path, port=port) as broker:
        async with asyncio.timeout(PATIENCE_S):
            await starting
        topic = await KafkaParts(fleet_prefix, BrokerUnderTest.of("local", broker)).topic(1)
        await publisher.send(OutRecord(topic, b"k", b"v"), timeout_s=30)
        await publisher.stop()


async def test_starting_without_a_broker_ends_with_stop(
    fleet_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    publisher = KafkaPublisher(nobody, traits_of("local"), client_id="early")
    reader = KafkaLogReader(
        nobody, traits_of("local"), topic="t", partitions=[0], client_id="early", fetch_max_wait_ms=20
    )
    source = KafkaParts(
        fleet_prefix, BrokerUnderTest("local", nobody, traits_of("local"), LocalBroker(Path()))
    )
    member = source.new_source("t", "g")
    starts = [
        asyncio.create_task(publisher.start()),
        asyncio.create_task(reader.start(at=StartAt())),
        asyncio.create_task(member.start(Calls())),
    ]
    faults = ("the broker does not answer", "cannot start", "cannot join")
    await until(lambda: all(fault in caplog.text for fault in faults))
    await asyncio.gather(publisher.stop(), reader.stop(), member.stop())
    for fault in await asyncio.gather(*starts, return_exceptions=True):
        assert isinstance(fault, BusError)


async def test_a_reader_knows_a_silent_broker_from_an_idle_one(
    broker: BrokerUnderTest, parts: KafkaParts
) -> None:
    topic = await parts.topic(2)
    reader = parts.new_reader(topic, [0, 1])
    parts.stop_later(reader)
    assert reader.silent_s() == math.inf
    await reader.start(at=StartAt("end"))

    async def poll_until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                assert await poll(reader) == []

    started_s = time.monotonic()  # an answer without records is one
    await poll_until(lambda: time.monotonic() - started_s > 2 and reader.silent_s() < 1)
    broker.launcher.freeze()
    try:
        await poll_until(lambda: reader.silent_s() > 2)
    finally:
        broker.launcher.thaw()
    await poll_until(lambda: reader.silent_s() < 1)
