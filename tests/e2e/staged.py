"""A fleet of separate processes in front of a scriptable model server, and what its users and rows say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from schemas.topics import TopicNames
from services.adapters.kafka.traits import BrokerKind

T = TypeVar("T")
PATIENCE_S = 120.0  # for what must happen; nothing waits that long when it works
POLL_S = 0.05

SHORT = "{connect_s: 1.0, first_token_s: 6.0, idle_s: 2.0, total_s: 60.0, min_tokens_per_s: 3.0}"
# Where none of them is tested.
PATIENT = "{connect_s: 30.0, first_token_s: 60.0, idle_s: 60.0, total_s: 240.0}"

SCRIPTED_POOL = """
  - name: scripted
    model: breaking
    base_url: {base_url}
    slots: {slots}
    features: [tools, json_object, json_schema, logprobs, completions]
    context_tokens: {context_tokens}
    price: {{input_per_mtok: 1.0, output_per_mtok: 2.0}}
    timeouts: {timeouts}
    breaker: {{min_calls: 100000}}  # what is broken here on purpose is asked for by the task
    adaptive: false  # one refusal on purpose would leave later tests a slot or two
"""


@dataclass(frozen=True, slots=True)
class Scripted:
    """The fleet, and the model server behind its pool `scripted`."""

    stage: Stage
    server: ModelServerProcess

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes."""
        return f"{self.stage.url}/v1"

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.stage.fleet.prefix)

    def attempts(self, marker: str) -> list[AttemptRecord]:
        """Ended tries of a call with that `x_marker`, in the order of their ends."""
        return [record for record in self.server.log() if record.marker == marker]

    async def at_work(self, marker: str) -> AttemptRecord:
        """The try that the model server works on, once there is one."""

        async def look() -> AttemptRecord | None:
            return next((one for one in await self.server.running_attempts() if one.marker == marker), None)

        return await until(look, f"a try of {marker} at the model server")

    async def ended(self, marker: str, count: int = 1) -> list[AttemptRecord]:
        """The ended tries of a call, once there are `count` of them."""

        async def look() -> list[AttemptRecord] | None:
            found = self.attempts(marker)
            return found if len(found) >= count else None

        return await until(look, f"{count} ended tries of {marker}")

    async def ledger(self, request_id: str, count: int = 1) -> list[dict[str, Any]]:
        """The ledger's rows of a request by start, once its task has ended and `count` rows are not open."""

        async def look() -> list[dict[str, Any]] | None:
            rows = await self._rows(request_id)
            settled = [row for row in rows if row["state"] != "open"]
            return rows if rows and len(settled) >= count and len(settled) == len(rows) else None

        return await until(look, f"{count} settled ledger rows of {request_id}")

    async def _rows(self, request_id: str) -> list[dict[str, Any]]:
        query = text(
            "SELECT ledger.* FROM ledger JOIN tasks USING (task_id) WHERE tasks.request_id = :id"
            " ORDER BY ledger.started_ms"
        )
        engine = create_async_engine(self.stage.database_url)
        try:
            async with engine.connect() as connection:
                found = await connection.execute(query, {"id": request_id})
                return [dict(row) for row in found.mappings()]
        finally:
            await engine.dispose()


async def until(look: Callable[[], Awaitable[T | None]], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first thing that `look` finds; AssertionError with `what` was waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        found = await look()
        if found is not None:
            return found
        assert loop.time() < deadline, f"not within {patience_s:.0f} s: {what}"
        await asyncio.sleep(POLL_S)


def new_marker() -> str:
    """A name for one call that no other call has: as `x_marker` and as x-request-id."""
    return f"m-{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def scripted_fleet(
    workdir: Path,
    broker: BrokerKind,
    *,
    slots: int = 32,
    context_tokens: int = 8192,
    timeouts: str = SHORT,
    nodes: int = 1,
    more_pools: str = "",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Scripted]:
    """Runs until the block ends; everything it started is stopped by pid. `environment`: of the services."""
    async with ModelServerProcess(model="breaking", chunks=6) as server:
        pool = SCRIPTED_POOL.format(
            base_url=server.base_url, slots=slots, context_tokens=context_tokens, timeouts=timeouts
        )
        pools = pool + more_pools
        prefix = f"e{uuid.uuid4().hex[:8]}."
        fleet = f"version: 1\nprefix: {prefix}\npartitions: 4\npools:{pools}"
        options = StageOptions(workdir, fleet, broker, environment=environment or {}, nodes=nodes)
        async with Stage(options) as stage:
            yield Scripted(stage, server)
