"""Calls of tools as a worker makes them, and what comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.messages import RunTask
from schemas.payload import Payload
from services.adapters.model_backends.choice import PoolClient
from services.core.field_checks import Refusal
from services.core.fleet import BackendKind, Pool, Timeouts
from services.core.outgoing import outgoing
from services.ports import BackendFault, ModelCall

LIMITS = Timeouts(connect_s=2, first_token_s=60, idle_s=5, total_s=60)


def tool_call(
    backend: BackendKind,
    url: str,
    name: str | None,
    arguments: dict[str, Any] | None = None,
    *,
    attempt: str = "attempt-1",
    timeouts: Timeouts = LIMITS,
) -> ModelCall:
    body: dict[str, Any] = {"arguments": arguments or {}}
    if name is not None:
        body["name"] = name
    task_id = f"task-of-{attempt}"
    task = RunTask(task_id=task_id, kind="tool", pool="p", arrived_ms=0, body=Payload(inline=body))
    sent = outgoing(task, body, Pool("p", "m", backend=backend))
    assert not isinstance(sent, Refusal), sent
    return ModelCall(url, sent.path, sent.body, attempt, sent.streaming, timeouts, sent.headers)


async def result_of(client: PoolClient, call: ModelCall) -> Any:
    (event,) = [event async for batch in client.events(call) for event in batch]
    assert event.keys() == {"result"}
    return event["result"]


async def fault_of(client: PoolClient, call: ModelCall) -> BackendFault:
    with pytest.raises(BackendFault) as caught:
        await result_of(client, call)
    return caught.value
