"""Mixed load under faults: streams and whole answers, priorities, keys, hang-ups and raw submissions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from httpx_aiohttp import HttpxAiohttpClient

from loadtest.kills.client import Told, body_of, chat

TIMEOUT_S = 75.0
KEY_TRIES = 6
KEY_PAUSE_S = 1.0
SUBMISSION_DEADLINE_S = 90.0
_STREAMED, _HANG_UP, _KEYED, _SUBMITTED = 0.55, 0.08, 0.07, 0.05
_PRIORITIES = ("interactive", "interactive", "interactive", "interactive", "standard", "batch")


@dataclass(frozen=True, slots=True)
class Targets:
    """`edges`: URL by name of the ingress. `models`: names by which the pools are asked for, with weights."""

    edges: Mapping[str, str]
    models: Mapping[str, float]
    bootstrap_servers: str
    submissions: str


class Load:
    """`rate` calls a second until stopped, drawn from `chance`; remembers what everybody was told."""

    def __init__(self, targets: Targets, run_id: str, rate: float, chance: random.Random) -> None:
        self._targets, self._run_id, self._rate, self._chance = targets, run_id, rate, chance
        self.told: list[Told] = []
        self.submitted: list[str] = []  # task_ids that the broker acknowledged
        self._sent = 0
        self._stop = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Returns once stopped and every call has ended, one way or another."""
        begin = time.monotonic()
        # Not idempotent: a submission that is there twice is one task, and no sequence error ends the load.
        producer = AIOKafkaProducer(bootstrap_servers=self._targets.bootstrap_servers, acks="all")
        limits = httpx.Limits(max_connections=2000)
        async with producer, HttpxAiohttpClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
            while not self._stop.is_set():
                wait = begin + self._sent / self._rate - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                self._begin(self._one(client, producer))
            await asyncio.gather(*self._under_way)

    async def probe(self, client: httpx.AsyncClient, edge: str, model: str) -> Told:
        """One unstreamed chat by way of that ingress to that pool."""
        told = self._new(edge, stream=False)
        self.told.append(told)
        await chat(client, self._targets.edges[edge], told, body_of(told, model))
        return told

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _new(self, edge: str, *, stream: bool) -> Told:
        self._sent += 1
        return Told(f"{self._run_id}-{self._sent}", stream=stream, sent_s=time.time(), edge=edge)

    def _one(self, client: httpx.AsyncClient, producer: Any) -> Any:
        """The next call, drawn before it begins: what happens to others does not change what is drawn."""
        chance = self._chance
        kind, hangs_up_s = chance.random(), chance.uniform(0.05, 0.8)
        edge = chance.choice(list(self._targets.edges))
        models = self._targets.models
        model = chance.choices(list(models), list(models.values()))[0]
        headers = {"x-chimera-priority": chance.choice(_PRIORITIES)}
        told = self._new(edge, stream=chance.random() < _STREAMED)
        if kind < _SUBMITTED:
            return self._submit(producer, told.request_id, model)
        self.told.append(told)
        if kind < _SUBMITTED + _KEYED:
            return self._keyed(client, told, model, headers)
        if kind < _SUBMITTED + _KEYED + _HANG_UP:
            return self._hangs_up(client, told, model, headers, hangs_up_s)
        return self._ask(client, told, model, headers)

    async def _ask(
        self, client: httpx.AsyncClient, told: Told, model: str, headers: Mapping[str, str]
    ) -> None:
        await chat(client, self._targets.edges[told.edge], told, body_of(told, model), headers)

    async def _hangs_up(
        self, client: httpx.AsyncClient, told: Told, model: str, headers: Mapping[str, str], after_s: float
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._ask(client, told, model, headers)
                return
        told.hung_up = True

    async def _keyed(
        self, client: httpx.AsyncClient, told: Told, model: str, headers: Mapping[str, str]
    ) -> None:
        """Calls again with the same key and body, by the other ingress, until it is answered."""
        told.key = f"key-{told.request_id}"
        body = body_of(told, model)
        edges = list(self._targets.edges)
        for number in range(KEY_TRIES):
            await chat(
                client, self._targets.edges[told.edge], told, body, {**headers, "Idempotency-Key": told.key}
            )
            if told.complete or self._stop.is_set() or number + 1 == KEY_TRIES:
                return
            await asyncio.sleep(KEY_PAUSE_S)
            edge = edges[(edges.index(told.edge) + 1) % len(edges)]
            again = replace(self._new(edge, stream=told.stream), key=told.key)
            again.request_id = f"{told.request_id.partition(':')[0]}:{number + 1}"
            self.told.append(again)
            told = again

    async def _submit(self, producer: Any, request_id: str, model: str) -> None:
        told = Told(request_id, stream=False, sent_s=time.time())
        task_id = f"task-{request_id}"
        task = {"task_id": task_id, "body": {"inline": body_of(told, model)}}
        headers = wire_headers(
            ("type", "SubmitTask"),
            ("v", "1"),
            ("request_id", request_id),
            ("deadline", str(int((time.time() + SUBMISSION_DEADLINE_S) * 1000))),
        )
        with contextlib.suppress(KafkaError):
            await producer.send_and_wait(
                self._targets.submissions, orjson.dumps(task), task_id.encode(), headers=headers
            )
            self.submitted.append(task_id)


def wire_headers(*headers: tuple[str, str]) -> Sequence[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in headers]
