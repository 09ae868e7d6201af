"""The fleet that chaos is done to, every part a process: three brokers, PostgreSQL, moody model servers, two
ingresses, an orchestrator, and two pools of which one has two workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.kafka.cluster import KafkaCluster
from infra.postgres import PostgresServer
from loadtest.chaos.backend import MoodyProcess
from loadtest.chaos.schedule import Shape
from loadtest.stage import Stage, StageOptions
from schemas.topics import TopicNames

POOLS = ("chat-main", "chat-side")
MODELS = {"chat-main": 0.8, "chat-side": 0.2}
WORKERS = ("worker-chat-main", "worker-chat-main-2", "worker-chat-side")
INGRESSES = ("ingress", "ingress-2")
WORDS = 8
_FLEET = """
version: 1
prefix: chaos.
partitions: 4
defaults:
  deadlines_s: {{interactive: 60.0, standard: 90.0, batch: 120.0}}
pools:
"""
_POOL = """
  - name: {name}
    model: model-of-{name}
    base_url: {base_url}
    slots: {slots}
    context_tokens: 8192
    timeouts: {{connect_s: 1.0, first_token_s: 3.0, idle_s: 2.0, total_s: 20.0}}
    breaker: {{cooldown_s: 1.0, cooldown_most_s: 4.0}}  # how soon after a heal it lives is what is measured
"""


class ChaosFleet:
    """`async with ChaosFleet(folder) as fleet`: everything runs. `time_scale` is the services' own."""

    def __init__(self, folder: Path, time_scale: float, say: Callable[[str], None]) -> None:
        self._folder, self._time_scale, self._say = folder, time_scale, say
        self._stack = AsyncExitStack()
        self.database = PostgresServer()
        self.backends = {
            pool: MoodyProcess(chunks=WORDS, ttft_s=0.12, chunk_interval_s=0.04, jitter=0.5) for pool in POOLS
        }
        self.edges: dict[str, str] = {}
        self.stage: Stage

    @property
    def cluster(self) -> KafkaCluster:
        broker = self.stage.broker
        if not isinstance(broker, KafkaCluster):
            raise TypeError("the stage of a chaos run has several nodes")
        return broker

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.stage.fleet.prefix)

    def shape(self, seconds: float, others: tuple[int, int]) -> Shape:
        """What a schedule of that length may strike, and how many faults there are beside those of each."""
        nodes = len(self.cluster.nodes)
        return Shape(WORKERS, INGRESSES, POOLS, nodes, seconds, seconds / 10, others)

    def edge_logs(self) -> dict[str, Path]:
        return {name: self.stage.state.logs / f"{name}.log" for name in INGRESSES}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        await self._stack.enter_async_context(self.database)
        for backend in self.backends.values():
            await self._stack.enter_async_context(backend)
        slots = dict(zip(POOLS, (48, 24), strict=True))
        pools = [
            _POOL.format(name=name, base_url=backend.base_url, slots=slots[name])
            for name, backend in self.backends.items()
        ]
        options = StageOptions(
            self._folder,
            _FLEET.format() + "".join(pools),
            "kafka",
            self.database.url,
            environment={"CHIMERA_TIME_SCALE": str(self._time_scale)},
            nodes=3,
        )
        self.stage = await self._stack.enter_async_context(Stage(options, self._say))
        _, second = await asyncio.gather(
            self.stage.start_another(WORKERS[0], WORKERS[1]),
            self.stage.start_another(INGRESSES[0], INGRESSES[1]),
        )
        self.edges = {INGRESSES[0]: self.stage.url, INGRESSES[1]: f"http://127.0.0.1:{second}"}
