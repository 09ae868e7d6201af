"""The launcher of several nodes, on nodes that are none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from infra.kafka.cluster import KafkaCluster
from infra.process import ProcessFailedError


class SlowNode:
    """Formats its directory for a while, and runs after that."""

    def __init__(self) -> None:
        self.running = False
        self.formatted = asyncio.Event()

    async def start(self) -> None:
        await self.formatted.wait()
        self.running = True

    async def kill(self) -> None:
        self.running = False


class BrokenNode(SlowNode):
    async def start(self) -> None:
        raise ProcessFailedError("no disk")


async def test_where_one_node_fails_none_starts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowNode()
    cluster = KafkaCluster(tmp_path)
    monkeypatch.setattr(cluster, "nodes", (BrokenNode(), slow))
    with pytest.raises(ProcessFailedError):
        await cluster.start()
    slow.formatted.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not slow.running
