"""Chunks that wait for their producer are bounded in count and bytes; what is over is dropped and counted."""

from __future__ import annotations

import asyncio

import pytest

from services.worker_pools.chunk_sender import ChunkPump
from tests.fakes.bus import FakeBus, FakePublisher

SIZE = 1_000


@pytest.mark.parametrize(("most", "most_bytes"), [(3, 100 * SIZE), (100, 3 * SIZE)])
async def test_the_newest_are_dropped_and_there_is_room_again_once_the_others_went(
    most: int, most_bytes: int
) -> None:
    bus = FakeBus({"replies": 1})
    publisher = FakePublisher(bus)
    await publisher.start()
    pump = ChunkPump(publisher, "replies", most, most_bytes)
    for round_ in (1, 2):
        for number in range(5):
            pump.put(b"%d" % number, b"x" * SIZE, 0)
        assert (pump.waiting, pump.dropped) == (3, 2 * round_)
        running = asyncio.create_task(pump.run())
        async with asyncio.timeout(10):
            while pump.waiting:
                await asyncio.sleep(0)
        running.cancel()
        assert [record.key for record in bus.records("replies")] == [b"0", b"1", b"2"] * round_
