"""The model backends that the contract of ports.ModelClient is run on: servers, clients, requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from schemas.messages import RunTask
from schemas.payload import Payload
from services.adapters.model_backends.choice import PoolClient, client_of
from services.core.field_checks import Refusal
from services.core.fleet import BackendKind, Pool, Timeouts
from services.core.outgoing import outgoing
from services.ports import ModelCall
from tests.backends_like.messages_server import KEY

PATIENCE_S = 20.0
LIMITS = Timeouts(connect_s=1, first_token_s=5, idle_s=5, total_s=10)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A kind of model backend: its client, and a running server that follows scripts."""

    backend: BackendKind
    server: ModelServerProcess
    client: PoolClient

    def call(
        self,
        script: Mapping[str, Any] | None = None,
        *,
        streaming: bool = True,
        attempt: str = "attempt-1",
        url: str | None = None,
        timeouts: Timeouts = LIMITS,
        **fields: Any,
    ) -> ModelCall:
        """A chat as a worker would send it; the script travels as each server takes it."""
        said = {"x_script": dict(script or {})}
        content = orjson.dumps(said).decode()
        body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
        if self.backend == "openai":
            body |= said
        pool = Pool("p", "m", backend=self.backend, streaming=streaming)
        task = RunTask(task_id="t", pool="p", arrived_ms=0, body=Payload(inline=body))
        sent = outgoing(task, body, pool)
        assert not isinstance(sent, Refusal), sent
        return ModelCall(
            self.server.root_url if url is None else url,
            sent.path,
            sent.body,
            attempt,
            sent.streaming,
            timeouts,
            sent.headers,
        )

    async def logged(self, attempt: str) -> AttemptRecord:
        """The ended attempt of that name, once it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [one for one in self.server.log() if one.attempt == attempt]):
                await asyncio.sleep(0.02)
        return found[0]

    async def at_work(self, attempt: str) -> None:
        """Returns once the server works on it."""
        async with asyncio.timeout(PATIENCE_S):
            while attempt not in [one.attempt for one in await self.server.running_attempts()]:
                await asyncio.sleep(0.02)


def client_for(backend: BackendKind) -> PoolClient:
    pool = Pool("p", "m", backend=backend, slots=4, api_key_env="KEY", timeouts=LIMITS)
    return client_of(pool, {"KEY": KEY}, lambda: 0.5)


async def events_of(parts: ModelParts, call: ModelCall) -> list[dict[str, Any]]:
    return [event async for batch in parts.client.events(call) for event in batch]


def text_of(events: list[dict[str, Any]]) -> str:
    """Of chunks, and of a whole answer."""
    choices = [choice for event in events for choice in event.get("choices", ())]
    said = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    return "".join(one.get("content") or "" for one in said)
