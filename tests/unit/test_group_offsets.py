"""What a member of a group may commit, when one of its partitions begins anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from services.ports import Assigned, InRecord
from services.runtime.group_offsets import GroupOffsets
from tests.fakes.bus import FakeBus
from tests.fakes.bus_readers import FakeGroupSource


class _Told:
    """A listener that passes on what is assigned."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets

    async def revoked(self, partitions: Collection[int]) -> None: ...

    async def assigned(self, partitions: Mapping[int, Assigned]) -> None:
        self._offsets.assigned({number: Assigned(5, "", 5) for number in partitions})


def record(partition: int, offset: int) -> InRecord:
    return InRecord("topic", partition, offset, 0, b"key", b"value", ())


async def test_a_log_that_was_reset_does_not_stop_the_commits_of_the_others() -> None:
    bus = FakeBus({"topic": 2})
    source = FakeGroupSource(bus, topic="topic", group="group")
    offsets = GroupOffsets(source, "group")
    await source.start(_Told(offsets))
    offsets.take([record(0, 5), record(1, 5)])
    offsets.take([record(0, 0)])  # below where it stood: the partition was made anew
    (taken,) = offsets.take([record(1, 6)])
    offsets.done(taken.place)
    await offsets.commit()
    assert bus.commits("group")[1].metadata  # the done-map names 6: not lost as a stale completion


def member_of(bus: FakeBus) -> GroupOffsets:
    return GroupOffsets(FakeGroupSource(bus, topic="topic", group="group"), "group")


def test_what_stood_there_at_the_assignment_is_redelivered() -> None:
    offsets = member_of(FakeBus({"topic": 1}))
    offsets.assigned({0: Assigned(5, "", 7)})
    taken = offsets.take([record(0, offset) for offset in (5, 6, 7)])
    assert [each.redelivered for each in taken] == [True, True, False]
    (anew,) = offsets.take([record(0, 0)])  # a log that began anew has nothing that another member saw
    assert not anew.redelivered


def test_a_place_is_owned_as_long_as_its_partition_stays() -> None:
    offsets = member_of(FakeBus({"topic": 2}))
    offsets.assigned({0: Assigned(5, "", 5), 1: Assigned(5, "", 5)})
    kept, lost = (taken.place for taken in offsets.take([record(0, 5), record(1, 5)]))
    offsets.assigned({0: Assigned(5, "", 6)})
    assert (offsets.owns(kept), offsets.owns(lost)) == (True, False)
    offsets.assigned({0: Assigned(5, "", 6), 1: Assigned(5, "", 6)})
    assert (offsets.owns(kept), offsets.owns(lost)) == (True, False)
