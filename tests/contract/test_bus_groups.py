"""What every bus must hold of consumer groups: one suite for the fake and both real brokers."""

from __future__ import annotations

import asyncio

import pytest

from services.ports import Commit, CommitRefused, InRecord
from tests.contract.bus_parts import BusParts, Calls, offsets, read, send_all, until, values


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
