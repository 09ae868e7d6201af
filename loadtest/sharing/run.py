"""`chimera loadtest sharing`: a worker on Apache Kafka, a model server with four slots, arms in turn."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uuid_utils
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from loadtest.model_server.process import ModelServerProcess
from loadtest.sharing.load import CHUNK_S, CHUNK_TOKENS, SLOTS, Job, beside_batch, beside_flood
from loadtest.sharing.outcomes import Arm, Round
from loadtest.sharing.report import BesideBatch, BesideFlood, Part
from loadtest.stage import Stage, StageOptions, load_average
from schemas.codec import decode, encode
from schemas.headers import TaskHeaders, to_text
from schemas.messages import Message, RunTask
from schemas.payload import Payload
from schemas.topics import TopicNames
from services.core.placement import stable_partition

POOL = "shared"
LATE_S = 1.0  # batch and flood: their deadline after the round's end, so that the next one begins empty
CALLER_S = 60.0  # what an interactive caller waits
PAUSE_S = 2.5
FLEET = """
version: 1
prefix: sharing.
defaults: {{interactive_wait_s: 0.02}}
pools:
  - name: shared
    model: paced
    base_url: {base_url}
    slots: {slots}
    adaptive: false
    prior_seconds: 0.2
"""


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """`seconds` is the length of one round of one arm, of which the first two are not counted."""

    parts: tuple[Part, ...] = ("batch", "tenants")
    seed: int = 1
    seconds: float = 18.0
    rounds: int = 2


async def run_sharing(options: SharingOptions, say: Callable[[str], None]) -> list[BesideBatch | BesideFlood]:
    """Rounds of both arms in turn, with the same arrivals. Raises AssertionError where work was not ended."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="chimera-sharing-"))
        server = ModelServerProcess(
            slots=SLOTS, chunk_tokens=CHUNK_TOKENS, ttft_s=CHUNK_S, chunk_interval_s=CHUNK_S
        )
        await stack.enter_async_context(server)
        fleet = FLEET.format(base_url=server.base_url, slots=SLOTS)
        stage_options = StageOptions(Path(folder), fleet, benchmark=True, start_services=False)
        stage = await stack.enter_async_context(Stage(stage_options, lambda _: None))
        await stage.start_services(only=(f"worker-{POOL}",))
        bench = await stack.enter_async_context(_Bench(stage))
        await bench.round(beside_batch("warm-up", 3.0, loaded=False), 3.0)
        return [await _part(bench, part, options, say) for part in options.parts]


async def _part(
    bench: _Bench, part: Part, options: SharingOptions, say: Callable[[str], None]
) -> BesideBatch | BesideFlood:
    draw = beside_batch if part == "batch" else beside_flood
    plain: list[Round] = []
    loaded: list[Round] = []
    for number in range(options.rounds):
        for arm, with_load in ((plain, False), (loaded, True)):
            jobs = draw(f"{options.seed}/{part}/{number}", options.seconds, loaded=with_load)
            arm.append(await bench.round(jobs, options.seconds))
            say(f"{part}, round {number + 1}, {'loaded' if with_load else 'plain'}: {len(jobs)} tasks")
    arms = Arm("plain", tuple(plain)), Arm("loaded", tuple(loaded))
    report = BesideBatch if part == "batch" else BesideFlood
    return report(*arms, load_average())


class _Bench:
    """Writes lane records as an ingress would and reads `results`."""

    def __init__(self, stage: Stage) -> None:
        self._names = TopicNames(stage.fleet.prefix)
        self._partitions = stage.fleet.partitions
        bootstrap = stage.bootstrap_servers
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")

    async def __aenter__(self) -> _Bench:
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign([TopicPartition(self._names.results, p) for p in range(self._partitions)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()
        await self._consumer.stop()

    async def round(self, jobs: Sequence[Job], seconds: float) -> Round:
        loop = asyncio.get_running_loop()
        begin_s, begin_ms = loop.time(), time.time() * 1000
        found = Round({}, begin_ms, seconds)
        for job in jobs:
            await asyncio.sleep(max(0.0, begin_s + job.at_s - loop.time()))
            task_id = str(uuid_utils.uuid7())
            found.jobs[task_id] = job
            await self._send(task_id, job, begin_ms + (seconds + LATE_S) * 1000)
        await asyncio.sleep(max(0.0, begin_s + seconds + PAUSE_S - loop.time()))
        found.read(await self._heard())
        if found.unended:
            raise AssertionError(f"{found.unended} interactive tasks have no end {PAUSE_S} s after the round")
        return found

    async def _send(self, task_id: str, job: Job, end_ms: float) -> None:
        now_ms = int(time.time() * 1000)
        waits = job.priority == "interactive" and not job.floods
        deadline_ms = now_ms + CALLER_S * 1000 if waits else end_ms
        partition = stable_partition(task_id, self._partitions)
        headers = TaskHeaders(task_id, int(deadline_ms), partition, tenant=job.tenant, tokens=job.tokens)
        body = {
            "model": POOL,
            "messages": [{"role": "user", "content": "go on"}],
            "x_script": {"chunks": job.chunks},
        }
        task = RunTask(
            task_id=task_id,
            tenant=job.tenant,
            pool=POOL,
            priority=job.priority,
            arrived_ms=now_ms,
            body=Payload(inline=body),
        )
        lane = self._names.lane(POOL, job.priority)
        key = task_id.encode()
        await self._producer.send(lane, encode(task), key=key, headers=headers.to_wire(), partition=partition)

    async def _heard(self) -> list[Message]:
        messages: list[Message] = []
        while batches := await self._consumer.getmany(timeout_ms=500):
            for records in batches.values():
                for record in records:
                    message = decode(to_text(record.headers), record.value)
                    if isinstance(message, Message):
                        messages.append(message)
        return messages
