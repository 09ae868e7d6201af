"""What a worker could not send shows in its metrics."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from services.ports import OutRecord
from services.worker_pools.send_faults import SendFaults
from tests.fakes.bus import FakeBus, FakePublisher


async def test_what_could_not_be_sent_is_counted_by_producer() -> None:
    bus = FakeBus({"replies": 1})
    durable, chunks = FakePublisher(bus), FakePublisher(bus)
    await chunks.start()
    registry = CollectorRegistry()
    registry.register(SendFaults("fast", {"durable": durable, "chunks": chunks}, lambda: 7))
    bus.refuse_sends(2)
    for _ in range(3):
        await chunks.post(OutRecord("replies", b"k", b"v"))
    await asyncio.sleep(0)  # faults of posts are noted in the loop's next turn
    await chunks.stop()
    lines = generate_latest(registry).decode().splitlines()
    assert {line for line in lines if not line.startswith("#")} == {
        'chimera_worker_posts_unacknowledged_total{pool="fast",producer="durable"} 0.0',
        'chimera_worker_posts_unacknowledged_total{pool="fast",producer="chunks"} 2.0',
        'chimera_worker_producers_replaced_total{pool="fast",producer="durable"} 0.0',
        'chimera_worker_producers_replaced_total{pool="fast",producer="chunks"} 0.0',
        'chimera_worker_chunks_dropped_total{pool="fast"} 7.0',
        'chimera_worker_beats_unacknowledged_total{pool="fast"} 0.0',
    }
