"""One call of the backend for the embeddings of several tasks: what each gets of its answer and its faults.

A call that the backend refuses for what is in it (400, too long) is repeated for each task alone, one after
the other, for together they have one slot: one bad input fails nobody else, and nobody reads of another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from schemas.failures import FailureKind
from services.core.answer_choice import MalformedChunkError
from services.core.embedding_form import Inputs, row_as, rows_of, shared_usage
from services.core.fleet import Pool
from services.core.rewrite import backend_body
from services.ports import BackendFault, ModelCall, ModelClient
from services.worker_pools.held import Held

ATTEMPTS_HEADER = "x-chimera-attempts"
_CALLERS = frozenset({FailureKind.BAD_REQUEST, FailureKind.TOO_LONG})

Answer = dict[str, Any]


@dataclass(slots=True, eq=False)
class Member:
    """A task in a shared call; `answer` is what it waits for."""

    held: Held
    call: ModelCall
    body: Mapping[str, Any]
    inputs: Inputs
    answer: asyncio.Future[Answer]
    key: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        rest = {name: value for name, value in self.body.items() if name not in ("input", "model")}
        alike = orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)
        self.key = (self.call.base_url, self.call.path, self.inputs.form, alike)

    @property
    def encoding(self) -> str:
        return str(self.body.get("encoding_format") or "float")


class EmbedCalls:
    """Calls of one pool's client."""

    def __init__(self, pool: Pool, client: ModelClient) -> None:
        self._pool = pool
        self._client = client

    async def together(self, members: Sequence[Member]) -> bool:
        """As `each`; False where each must be tried alone, for the call was refused for what is in it."""
        inputs = [item for member in members for item in member.inputs.items]
        first = members[0]
        body = backend_body({**first.body, "input": inputs}, self._pool, streaming=False)
        others = ",".join(member.call.attempt for member in members[1:])
        call = replace(first.call, body=body, headers={**first.call.headers, ATTEMPTS_HEADER: others})
        try:
            answers = _answers(await self.asked(call), members)
        except BackendFault as fault:
            if fault.kind in _CALLERS:
                return False
            for member in members:
                fail(member, fault)
        except MalformedChunkError as fault:
            for member in members:
                fail(member, fault)
        else:
            for member, answer in zip(members, answers, strict=True):
                if not member.answer.done():
                    member.answer.set_result(answer)
        return True

    async def each(self, members: Sequence[Member]) -> None:
        """Sets every member's answer; those that left meanwhile are passed over."""
        for member in members:
            if member.answer.done():
                continue
            asking = asyncio.ensure_future(self.alone(member))
            try:
                await asyncio.wait({asking, member.answer}, return_when=asyncio.FIRST_COMPLETED)
                if not member.answer.done():
                    member.answer.set_result(asking.result())
            except (BackendFault, MalformedChunkError) as fault:
                fail(member, fault)
            finally:
                asking.cancel()  # it still runs where its own task left, or all did

    async def alone(self, member: Member) -> Answer:
        """Raises BackendFault, MalformedChunkError."""
        return _answers(await self.asked(member.call), [member])[0]

    async def asked(self, call: ModelCall) -> Answer:
        """The backend's own answer. Raises BackendFault."""
        events = cast("Any", self._client.events(call))  # a generator, which the port does not promise
        async with aclosing(events):
            async for batch in events:
                found: Answer = batch[0]
                return found
        raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is empty")


def _answers(told: Answer, members: Sequence[Member]) -> list[Answer]:
    """Each task's own answer out of that of their call. Raises MalformedChunkError."""
    rows = rows_of(told, sum(len(member.inputs.items) for member in members))
    usages = shared_usage(told.get("usage"), [member.inputs.tokens() for member in members])
    answers, at = [], 0
    for member, usage in zip(members, usages, strict=True):
        count = len(member.inputs.items)
        own = [row_as(row, place, member.encoding) for place, row in enumerate(rows[at : at + count])]
        answers.append({**told, "object": "list", "data": own, "usage": usage})
        at += count
    return answers


def fail(member: Member, fault: BackendFault | MalformedChunkError) -> None:
    """A fault of its own for each: an exception that several tasks raise would grow a traceback of all."""
    if member.answer.done():
        return
    if isinstance(fault, MalformedChunkError):
        member.answer.set_exception(MalformedChunkError(str(fault)))
        return
    member.answer.set_exception(
        BackendFault(
            fault.kind,
            fault.message,
            status=fault.status,
            code=fault.code,
            param=fault.param,
            retry_after_s=fault.retry_after_s,
        )
    )
