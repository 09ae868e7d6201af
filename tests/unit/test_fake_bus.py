"""The faults that the fake bus can be asked for: each does what it says, and only that."""

from __future__ import annotations

import pytest

from services.ports import BusError, Commit, CommitRefused, OutRecord
from tests.contract.bus_parts import Calls
from tests.fakes.bus import FakeBus, FakePublisher
from tests.fakes.bus_readers import FakeGroupSource


def record(value: bytes) -> OutRecord:
    return OutRecord("t", None, value, partition=0)


async def test_refused_sends_are_not_stored_and_lost_acknowledgements_are() -> None:
    bus = FakeBus({"t": 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    bus.refuse_sends(1)
    bus.lose_acks(1)
    for value in (b"refused", b"stored unheard"):
        with pytest.raises(BusError):
            await publisher.send(record(value), timeout_s=1)
    await publisher.send(record(b"stored"), timeout_s=1)
    assert [found.value for found in bus.records("t")] == [b"stored unheard", b"stored"]


async def test_a_frozen_bus_ends_a_send_by_its_time_out_and_delivers_it_later() -> None:
    bus = FakeBus({"t": 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    bus.freeze()
    with pytest.raises(BusError):
        await publisher.send(record(b"late"), timeout_s=0.01)
    assert bus.records("t") == []
    bus.thaw()
    await publisher.send(record(b"after"), timeout_s=1)
    assert [found.value for found in bus.records("t")] == [b"late", b"after"]


async def test_a_rebalance_by_command_brings_uncommitted_records_again() -> None:
    bus = FakeBus({"t": 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    for value in (b"0", b"1"):
        await publisher.send(record(value), timeout_s=1)
    source, calls = FakeGroupSource(bus, topic="t", group="g"), Calls()
    await source.start(calls)
    assert len(await source.poll(timeout_ms=10, max_records=10)) == 2
    await source.commit({0: Commit(1, "map")})
    await bus.rebalance("g")
    assert [what for what, _ in calls.told] == ["assigned", "revoked", "assigned"]
    assert (calls.owned[0].offset, calls.owned[0].metadata, calls.owned[0].high_water) == (1, "map", 2)
    assert [found.value for found in await source.poll(timeout_ms=10, max_records=10)] == [b"1"]
    assert bus.commits("g") == {0: Commit(1, "map")}


async def test_a_killed_member_is_told_nothing_and_commits_nothing() -> None:
    bus = FakeBus({"t": 2})
    doomed, doomed_calls = FakeGroupSource(bus, topic="t", group="g"), Calls()
    heir, heir_calls = FakeGroupSource(bus, topic="t", group="g"), Calls()
    await doomed.start(doomed_calls)
    await heir.start(heir_calls)
    told = list(doomed_calls.told)
    await bus.kill(doomed)
    assert doomed_calls.told == told
    assert heir_calls.owned.keys() == {0, 1}
    with pytest.raises(CommitRefused):
        await doomed.commit({0: Commit(0)})
