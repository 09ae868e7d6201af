"""What every bus must hold: one suite for the fake, the local broker and Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from infra.kafka.node import KafkaNode
from infra.local_broker import LocalBroker
from services.ports import BusError, Commit, CommitRefused, InRecord, OutRecord, StartAt
from tests.broker_under_test import BrokerUnderTest
from tests.contract.bus_parts import (
    BusParts,
    Calls,
    FakeParts,
    KafkaParts,
    nothing_more,
    offsets,
    read,
    send_all,
    until,
    values,
)


@pytest.fixture(params=["fake", "local", "kafka"])
def place(request: pytest.FixtureRequest) -> BrokerUnderTest | None:
    """The broker to run on; None for the fake."""
    if request.param == "local":
        local: LocalBroker = request.getfixturevalue("local_broker")
        return BrokerUnderTest.of("local", local)
    if request.param == "kafka":
        kafka: KafkaNode = request.getfixturevalue("kafka_node")
        return BrokerUnderTest.of("kafka", kafka)
    return None


@pytest.fixture
async def bus(place: BrokerUnderTest | None, fleet_prefix: str) -> AsyncIterator[BusParts]:
    parts = FakeParts(fleet_prefix) if place is None else KafkaParts(fleet_prefix, place)
    yield parts
    await parts.stop()


# Publishing and reading


async def test_records_of_a_partition_keep_their_order(bus: BusParts) -> None:
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    pairs = zip(values(topic, 0, 300), values(topic, 1, 300), strict=True)
    await send_all(publisher, [record for pair in pairs for record in pair])
    reader = bus.new_reader(topic, [0, 1])
    bus.stop_later(reader)
    await reader.start(at=StartAt("beginning"))
    records = await read(reader, 600)
    for partition in (0, 1):
        mine = [record for record in records if record.partition == partition]
        assert [record.value for record in mine] == [str(n).encode() for n in range(300)]
        assert [record.offset for record in mine] == list(range(300))


async def test_a_record_arrives_as_it_was_sent(bus: BusParts) -> None:
    topic = await bus.topic(3)
    publisher = await bus.publisher()
    reader = bus.new_reader(topic, range(3))
    bus.stop_later(reader)
    await reader.start(at=StartAt("end"))
    headers = [("type", b"RunTask"), ("v", b"1"), ("odd", bytes(range(256)))]
    await publisher.send(OutRecord(topic, b"key", b"value", headers, partition=2), timeout_s=30)
    await publisher.send(OutRecord(topic, b"tombstone", None, partition=1), timeout_s=30)
    records = {record.partition: record for record in await read(reader, 2)}
    assert (records[2].topic, records[2].key, records[2].value) == (topic, b"key", b"value")
    assert records[2].headers == tuple(headers)
    assert records[2].timestamp_ms > 0
    assert (records[1].key, records[1].value, records[1].headers) == (b"tombstone", None, ())


async def test_a_key_always_goes_to_the_same_partition(bus: BusParts) -> None:
    topic = await bus.topic(8)
    publisher = await bus.publisher()
    await send_all(publisher, [OutRecord(topic, b"k%d" % (n % 20), b"v") for n in range(60)])
    reader = bus.new_reader(topic, range(8))
    bus.stop_later(reader)
    await reader.start(at=StartAt("beginning"))
    homes: dict[bytes | None, set[int]] = {}
    for record in await read(reader, 60):
        homes.setdefault(record.key, set()).add(record.partition)
    assert len(homes) == 20
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len(set.union(*homes.values())) > 1


async def test_what_cannot_be_sent_is_a_bus_error_and_harms_nothing(bus: BusParts) -> None:
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    with pytest.raises(BusError):
        await publisher.send(OutRecord(topic, None, b"v", partition=7), timeout_s=30)
    with pytest.raises(BusError):
        await publisher.send(OutRecord(topic, None, None, partition=0), timeout_s=30)
    with pytest.raises(BusError):
        await (await publisher.post(OutRecord(topic, None, b"v", partition=7)))
    await publisher.send(OutRecord(topic, None, b"v", partition=0), timeout_s=30)


async def test_a_stopped_publisher_refuses(bus: BusParts) -> None:
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    await publisher.stop()
    with pytest.raises(BusError):
        await publisher.send(OutRecord(topic, b"k", b"v"), timeout_s=30)
    with pytest.raises(BusError):
        await (await publisher.post(OutRecord(topic, b"k", b"v")))


# The reader


async def test_at_the_end_only_later_records_are_read(bus: BusParts) -> None:
    """Also of a partition that was empty, whose end is its beginning."""
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 300))
    reader = bus.new_reader(topic, [0, 1])
    bus.stop_later(reader)
    await reader.start(at=StartAt("end"))
    assert reader.caught_up()
    await send_all(publisher, values(topic, 0, 2, first=300) + values(topic, 1, 1))
    records = await read(reader, 3)
    assert offsets(records, 0) == [300, 301]
    assert offsets(records, 1) == [0]
    assert await nothing_more(reader)


async def test_nothing_sent_after_start_is_missed_while_others_send(bus: BusParts) -> None:
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    going = True

    async def keep_sending() -> int:
        sent = 0
        while going:
            await publisher.send(OutRecord(topic, None, str(sent).encode(), partition=0), timeout_s=30)
            sent += 1
            await asyncio.sleep(0)
        return sent

    sending = asyncio.create_task(keep_sending())
    await asyncio.sleep(0.1)
    reader = bus.new_reader(topic, [0])
    bus.stop_later(reader)
    await reader.start(at=StartAt("end"))
    await publisher.send(OutRecord(topic, None, b"mark", partition=0), timeout_s=30)
    await asyncio.sleep(0.1)
    going = False
    last = str(await sending - 1).encode()
    records = await read(reader, 1)
    while records[-1].value not in (last, b"mark") or len({last, b"mark"} & {r.value for r in records}) < 2:
        records += await read(reader, 1)
    assert b"mark" in [record.value for record in records]
    assert offsets(records, 0) == list(range(records[0].offset, records[0].offset + len(records)))


async def test_from_the_beginning_it_is_caught_up_once_all_was_returned(bus: BusParts) -> None:
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 1, 5))
    reader = bus.new_reader(topic, [0, 1])
    bus.stop_later(reader)
    await reader.start(at=StartAt("beginning"))
    assert not reader.caught_up()
    records: list[InRecord] = []
    while len(records) < 5:
        assert not reader.caught_up()
        records += await reader.poll(timeout_ms=200, max_records=2)
    assert offsets(records, 1) == [0, 1, 2, 3, 4]
    assert reader.caught_up()


async def test_from_a_time_nothing_later_is_missed(bus: BusParts) -> None:
    """Nothing earlier is read either, if the broker can look times up; partition 1 has nothing later."""
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 3) + values(topic, 1, 1))
    await asyncio.sleep(0.05)
    await send_all(publisher, values(topic, 0, 2, first=3))
    everything = bus.new_reader(topic, [0])
    bus.stop_later(everything)
    await everything.start(at=StartAt("beginning"))
    third = (await read(everything, 5))[3]
    reader = bus.new_reader(topic, [0, 1])
    bus.stop_later(reader)
    await reader.start(at=StartAt("time", third.timestamp_ms))
    records = await read(reader, 2 if bus.knows_times else 6)
    assert offsets(records, 0)[-2:] == [3, 4]
    if bus.knows_times:
        assert len(records) == 2
    assert reader.caught_up()


# The group source


async def test_commit_and_metadata_come_back_with_the_next_assignment(bus: BusParts) -> None:
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 5))
    first = await bus.source(topic, Calls())
    assert offsets(await read(first, 5), 0) == [0, 1, 2, 3, 4]
    await first.commit({0: Commit(2, "x" * 3400)})
    await first.stop()
    calls = Calls()
    second = await bus.source(topic, calls)
    assert offsets(await read(second, 3), 0) == [2, 3, 4]
    assert calls.owned[0].offset == 2
    assert calls.owned[0].metadata == ("x" * 3400 if bus.keeps_metadata else "")
    assert calls.owned[0].high_water == 5
    assert (calls.owned[1].offset, calls.owned[1].metadata, calls.owned[1].high_water) == (0, "", 0)


async def test_position_and_high_water_follow_the_polls(bus: BusParts) -> None:
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 10))
    source = await bus.source(topic, Calls())
    await until(lambda: bool(source.assignment()))
    assert source.position(0) == 0
    assert source.position(7) is None
    assert source.high_water(7) is None
    records: list[InRecord] = []
    while len(records) < 4:
        records += await source.poll(timeout_ms=200, max_records=4 - len(records))
    assert source.position(0) == 4
    assert source.high_water(0) == 10
    assert source.position(1) == 0


async def test_a_poll_of_a_subset_leaves_the_others_for_later(bus: BusParts) -> None:
    topic = await bus.topic(3)
    publisher = await bus.publisher()
    await send_all(publisher, [r for p in range(3) for r in values(topic, p, 4)])
    source = await bus.source(topic, Calls())
    await until(lambda: bool(source.assignment()))
    records: list[InRecord] = []
    while len(records) < 4:
        records += await source.poll(timeout_ms=200, max_records=100, partitions=[1])
    assert {record.partition for record in records} == {1}
    assert await source.poll(timeout_ms=100, max_records=100, partitions=[]) == []
    assert await source.poll(timeout_ms=100, max_records=100, partitions=[99]) == []
    rest = await read(source, 8)
    assert offsets(rest, 0) == offsets(rest, 2) == [0, 1, 2, 3]


async def test_a_second_member_takes_half_and_uncommitted_records_come_again(bus: BusParts) -> None:
    topic = await bus.topic(4)
    publisher = await bus.publisher()
    await send_all(publisher, [r for p in range(4) for r in values(topic, p, 3)])
    first_calls, second_calls = Calls(), Calls()
    first = await bus.source(topic, first_calls)
    await read(first, 12)

    async def commit_one_of_each(partitions: object) -> None:
        await first.commit({p: Commit(1) for p in range(4)})

    first_calls.on_revoked = commit_one_of_each
    joining = asyncio.create_task(bus.source(topic, second_calls))
    polled = []
    while not joining.done() or not second_calls.owned or len(first_calls.told) < 3:
        polled += await first.poll(timeout_ms=50, max_records=100)
    second = await joining
    everything = frozenset(range(4))
    assert first_calls.told[:2] == [("assigned", everything), ("revoked", everything)]
    assert first_calls.told[2][0] == "assigned"
    assert {*first_calls.owned, *second_calls.owned} == everything
    assert not {*first_calls.owned} & {*second_calls.owned}
    assert all(found.offset == 1 for found in (first_calls.owned | second_calls.owned).values())
    while len(polled) < 4:
        polled += await first.poll(timeout_ms=200, max_records=100)
    again = polled + await read(second, 4)
    assert sorted((r.partition, r.offset) for r in again) == [(p, o) for p in range(4) for o in (1, 2)]


async def test_a_partition_that_went_to_another_member_cannot_be_committed(bus: BusParts) -> None:
    topic = await bus.topic(2)
    first_calls, second_calls = Calls(), Calls()
    first = await bus.source(topic, first_calls)
    await until(lambda: bool(first_calls.owned))
    second = await bus.source(topic, second_calls)
    await until(lambda: bool(second_calls.owned) and len(first_calls.owned) == 1, first, second)
    (mine,), (others,) = first_calls.owned, second_calls.owned
    with pytest.raises(CommitRefused):
        await first.commit({others: Commit(0)})
    await first.commit({mine: Commit(0)})


async def test_a_member_that_was_evicted_unheard_cannot_commit(bus: BusParts) -> None:
    """It still believes in its assignment: only the broker knows better."""
    topic = await bus.topic(1)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 3))
    hanging = await bus.source(topic, Calls())
    await read(hanging, 3)
    await bus.silence(hanging)
    heir_calls = Calls()
    heir = await bus.source(topic, heir_calls)
    await until(lambda: bool(heir_calls.owned), heir)
    with pytest.raises(CommitRefused):
        await hanging.commit({0: Commit(3)})


async def test_a_killed_members_partitions_are_taken_over(bus: BusParts) -> None:
    topic = await bus.topic(2)
    publisher = await bus.publisher()
    await send_all(publisher, values(topic, 0, 2) + values(topic, 1, 2))
    doomed_calls, heir_calls = Calls(), Calls()
    doomed = await bus.source(topic, doomed_calls)
    assert len(await read(doomed, 4)) == 4
    heir = await bus.source(topic, heir_calls)
    await until(lambda: len(heir_calls.owned) == 1, doomed)
    await bus.kill(doomed)
    seen: set[tuple[int, int]] = set()
    async with asyncio.timeout(60):
        while len(seen) < 4:
            seen |= {(r.partition, r.offset) for r in await heir.poll(timeout_ms=200, max_records=100)}
    assert heir.assignment() == {0, 1}
