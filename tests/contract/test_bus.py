"""What every bus must hold of publishers and readers: one suite for the fake and both real brokers."""

from __future__ import annotations

import asyncio

import pytest

from services.ports import BusError, InRecord, OutRecord, StartAt
from tests.contract.bus_parts import (
    BusParts,
    nothing_more,
    offsets,
    read,
    send_all,
    values,
)

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
