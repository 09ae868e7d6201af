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
