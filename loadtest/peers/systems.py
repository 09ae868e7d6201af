"""The task systems of the comparison: how each is started, given work, killed, and asked what came of it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import uuid_utils
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from infra.kafka.node import KafkaNode
from infra.launcher import Launcher
from infra.process import ChildProcess
from infra.redis import RedisServer
from loadtest.peers.environment import peer_environment
from loadtest.stage import Stage, StageOptions
from schemas.codec import encode, message_headers
from schemas.messages import SubmitTask
from schemas.payload import Payload
from schemas.topics import TopicNames

CONCURRENCY = 16
_QUIET = asyncio.subprocess.DEVNULL
_AGAIN_S = 0.5  # a supervisor's pause before it starts a worker again
_SEND_S = 10.0
FLEET = """
version: 1
prefix: peers.
pools:
  - name: work
    model: m
    base_url: {base_url}
    slots: {slots}
    context_tokens: 8192
"""


class System(ABC):
    """`start` returns when it works; `send` when a task was accepted, or with False."""

    name: str
    settings: str

    @abstractmethod
    async def start(self) -> None: ...
    @abstractmethod
    async def stop(self) -> None: ...
    @abstractmethod
    async def send(self, marker: str) -> bool: ...
    @abstractmethod
    async def kill(self, victim: str) -> None:
        """Kills `worker` or `broker` with SIGKILL and starts it again, as a supervisor would."""

    @abstractmethod
    async def outcomes(self, markers: Collection[str]) -> set[str]: ...


class Client:
    """A peer's client process: one line in, the same line out once it was accepted."""

    def __init__(self, python: Path, module: str, env: Mapping[str, str]) -> None:
        self._command = (str(python), "-m", module)
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            "client",
            stdin=pipe,
            stdout=pipe,
            stderr=_QUIET,
            env=self._env,
        )
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def send(self, marker: str, timeout_s: float) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            return False
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[marker] = accepted
        process.stdin.write(marker.encode() + b"\n")
        try:
            async with asyncio.timeout(timeout_s):
                return await accepted
        except TimeoutError:
            return False

    async def outcomes(self, markers: Collection[str]) -> set[str]:
        pipe = asyncio.subprocess.PIPE
        asking = await asyncio.create_subprocess_exec(
            *self._command,
            "outcomes",
            stdin=pipe,
            stdout=pipe,
            stderr=_QUIET,
            env=self._env,
        )
        found, _ = await asking.communicate("".join(f"{marker}\n" for marker in markers).encode())
        return set(found.decode().split())

    async def _read(self) -> None:
        process = self._process
        while process is not None and process.stdout is not None:
            line = await process.stdout.readline()
            if not line:
                return
            waiting = self._waiting.pop(line.decode().strip(), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(True)


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """`worker`: arguments behind the interpreter; {concurrency} and the environment say the rest."""

    name: str
    settings: str
    module: str
    worker: tuple[str, ...]
    on_kafka: bool


CELERY = PeerSpec(
    "Celery + Redis",
    "acks_late, reject_on_worker_lost, prefetch 1, visibility time-out {visibility_s} s, AOF everysec",
    "loadtest.peers.apps.celery_app",
    ("-m", "celery", "-A", "loadtest.peers.apps.celery_app", "worker", "--concurrency", str(CONCURRENCY)),
    on_kafka=False,
)
TASKIQ = PeerSpec(
    "taskiq-aio-kafka",
    "acks=all, idempotent producer, group from the earliest record, results in Redis",
    "loadtest.peers.apps.taskiq_app",
    (
        *("-m", "taskiq", "worker", "loadtest.peers.apps.taskiq_app:broker", "--workers", "1"),
        *("--max-async-tasks", str(CONCURRENCY)),
    ),
    on_kafka=True,
)


class PeerSystem(System):
    """A peer from its spec, in a folder of its own."""

    def __init__(self, spec: PeerSpec, python: Path, folder: Path, model_url: str, visibility_s: int) -> None:
        self.name, self.settings = spec.name, spec.settings.format(visibility_s=visibility_s)
        self._spec, self._python = spec, python
        self._redis = RedisServer(folder / "redis")
        self._kafka = KafkaNode.single(folder / "kafka") if spec.on_kafka else None
        self._broker: Launcher = self._kafka or self._redis
        self._env = peer_environment(
            PEER_MODEL_URL=model_url,
            PEER_REDIS_URL=self._redis.url,
            PEER_BROKER_URL=self._kafka.bootstrap_servers if self._kafka else self._redis.url,
            PEER_VISIBILITY_S=str(visibility_s),
        )
        self._worker = ChildProcess(f"{spec.name} worker", folder / "worker.log")
        self._client = Client(python, spec.module, self._env)

    async def start(self) -> None:
        await self._redis.start()
        if self._kafka is not None:
            await self._kafka.start()
        self._spawn()
        await self._client.start()

    async def stop(self) -> None:
        await self._client.stop()
        await self._kill_worker()
        if self._kafka is not None:
            await self._kafka.stop()
        await self._redis.stop()

    async def send(self, marker: str) -> bool:
        return await self._client.send(marker, _SEND_S)

    async def kill(self, victim: str) -> None:
        if victim == "broker":
            await self._broker.kill()
            await self._broker.start()
            return
        await self._kill_worker()
        await asyncio.sleep(_AGAIN_S)
        self._spawn()

    async def outcomes(self, markers: Collection[str]) -> set[str]:
        return await self._client.outcomes(markers)

    def _spawn(self) -> None:
        self._worker.spawn([str(self._python), *self._spec.worker], self._env)

    async def _kill_worker(self) -> None:
        """With its children: they would work on as orphans."""
        if self._worker.running:
            children = psutil.Process(self._worker.pid).children(recursive=True)
            await self._worker.kill()
            for child in children:
                if child.is_running():
                    child.kill()


class ChimeraSystem(System):
    """This project: one worker, the orchestrator, and an ingress that admits what producers submit."""

    name = "Chimera"
    settings = "Kafka as it comes, submissions by an idempotent producer with acks=all, SQLite"

    def __init__(self, folder: Path, model_url: str) -> None:
        fleet = FLEET.format(base_url=model_url, slots=CONCURRENCY)
        self._stage = Stage(StageOptions(folder, fleet, "kafka"), lambda _: None)
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        await self._stage.__aenter__()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._stage.bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=10_000,
        )
        await self._producer.start()

    async def stop(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
        await self._stage.__aexit__(None, None, None)

    async def send(self, marker: str) -> bool:
        body = {"model": "work", "messages": [{"role": "user", "content": "work"}], "x_marker": marker}
        task = SubmitTask(task_id=str(uuid_utils.uuid7()), priority="interactive", body=Payload(inline=body))
        headers = message_headers(task, request_id=marker, deadline=str(int((time.time() + 600) * 1000)))
        topic = TopicNames(self._stage.fleet.prefix).submissions
        if self._producer is None:
            return False
        try:
            async with asyncio.timeout(_SEND_S):
                await self._producer.send_and_wait(
                    topic, encode(task), task.task_id.encode(), headers=headers
                )
        except (KafkaError, TimeoutError):
            return False
        return True

    async def kill(self, victim: str) -> None:
        if victim == "broker":
            await self._stage.broker.kill()
            await self._stage.broker.start()
            return
        pid = self._stage.services["worker-work"].pid
        if pid is not None:
            psutil.Process(pid).kill()  # its supervisor starts it again

    async def outcomes(self, markers: Collection[str]) -> set[str]:
        engine = create_async_engine(self._stage.database_url)
        try:
            async with engine.connect() as connection:
                query = text("SELECT request_id FROM tasks WHERE state = 'succeeded'")
                found = {row[0] for row in await connection.execute(query)}
        finally:
            await engine.dispose()
        return found & set(markers)
