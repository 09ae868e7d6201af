"""What is sent to a backend for a task: path, JSON and headers, by the kind of backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.messages import RunTask
from services.core.anthropic_request import messages_request
from services.core.field_checks import Refusal
from services.core.fleet import Pool, does
from services.core.rewrite import PATHS, backend_body
from services.core.tool_task import tool_call


@dataclass(frozen=True, slots=True)
class Outgoing:
    """`path` is relative to the backend's base URL; `streaming`: the answer is asked for as events."""

    path: str
    body: bytes
    streaming: bool
    headers: Mapping[str, str] = field(default_factory=dict)


def outgoing(task: RunTask, body: Mapping[str, Any], pool: Pool) -> Outgoing | Refusal:
    """A Refusal where the pool's backend cannot be asked for this."""
    if not does(pool.backend, task.kind):
        message = f"pool {pool.name} runs no tasks of kind {task.kind}"
        return Refusal(message, None, "no_pool")
    if task.kind == "tool":
        return _tool(task, body, pool)
    streaming = pool.streaming and task.kind != "embedding"
    if pool.backend == "anthropic":
        sent = messages_request(body, pool, streaming=streaming)
        if isinstance(sent, Refusal):
            return sent
        return Outgoing("/v1/messages", orjson.dumps(sent), streaming)
    return Outgoing(PATHS[task.kind], backend_body(body, pool, streaming=streaming), streaming)


def _tool(task: RunTask, body: Mapping[str, Any], pool: Pool) -> Outgoing | Refusal:
    call = tool_call(body, pool.backend)
    if isinstance(call, Refusal):
        return call
    # The task's id, not the try's: a service that keeps keys does a task once, however often it is tried.
    return Outgoing("", call, False, {"idempotency-key": task.task_id})
