"""Embedding tasks that are ready within a short wait share one call of the backend.

Law: a task keeps its own attempt, ledger row, deadline and cancel. Who is cancelled drops out and the call
goes on for the others; when nobody is left it is closed. Tasks share a call only where everything but their
inputs is alike, backend included. A call that the backend refuses for what is in it (400, too long) is
repeated for each task alone: one bad input fails nobody else, and nobody reads of another's.

Slots: a call takes one, the slot of the task that began it; those that join give theirs back at once. The
backend has one request in work, whatever is in it, and the slots of the pool are what bounds that; so the
wait, of `max_wait_s` at most, never holds more than one slot of those that chats could have. When the
task with the slot leaves early, one of the others takes the slot over. Where no slot is free there is nobody
to join, which is when it is worth most: a pool that does no chats starts its tasks without a slot then, one
at a time, while a call is open; one that cannot join it waits for a slot.

On the wire: `x-request-id` is the attempt of the first task, `x-chimera-attempts` has the others', with
commas. A task that is tried alone after a refused call is asked for under its own attempt.

Usage is the backend's, shared by the estimated tokens of the inputs, and marked as an estimate where shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.failures import FailureKind
from services.core.embedding_form import inputs_of
from services.core.fleet import Pool
from services.ports import BackendFault, ModelCall, ModelClient
from services.worker_pools.embed_call import Answer, EmbedCalls, Member, fail
from services.worker_pools.held import Held

_MOST_TASKS = 100  # their attempts stand in one header, and servers take 8 KiB of headers
_BROKEN = "the call that this task shared broke off"


class Seats(Protocol):
    """The slots of the pool, as far as tasks share them."""

    async def seated(self, held: Held) -> None:
        """Returns when the task has a slot."""
        ...

    def ride(self, held: Held) -> None:
        """The task's slot is free for others, though the task runs on."""
        ...

    def fill(self) -> None:
        """A call is open: others may start for it."""
        ...

    def sit(self, held: Held) -> None:
        """The task takes a slot again, whatever the limit: another gives one back at this moment."""
        ...


@dataclass(slots=True, eq=False)
class _Shared:
    """A call that is still open to others, and then on its way."""

    key: tuple[Any, ...]
    seat: Held
    members: list[Member] = field(default_factory=list)
    items: int = 0
    timer: asyncio.TimerHandle | None = None
    running: asyncio.Task[None] | None = None


class EmbedBatches:
    """The shared calls of one worker. `seats` is set before the first task starts."""

    def __init__(self, pool: Pool, client: ModelClient) -> None:
        self._pool = pool
        self._calls = EmbedCalls(pool, client)
        self._open: dict[tuple[Any, ...], _Shared] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._only = "embed" in pool.capabilities and "chat" not in pool.capabilities
        self.seats: Seats | None = None

    def joinable(self) -> bool:
        """Whether a task may start without a slot, to join a call."""
        return self._only and bool(self._open)

    def rider(self, held: Held, body: Mapping[str, Any]) -> ModelClient:
        """The client for one try of this task, whose JSON is `body`."""
        return _Rider(self, held, body)

    async def seated(self, held: Held) -> None:
        """Returns when the task has a slot: for one that began without, and joins nothing."""
        if self.seats is not None:
            await self.seats.seated(held)

    async def answer(self, held: Held, body: Mapping[str, Any], call: ModelCall) -> Answer:
        """Raises BackendFault, MalformedChunkError."""
        inputs = inputs_of(body.get("input"))
        if inputs is None:  # not by our edge; the backend says what is wrong with it
            await self.seated(held)
            return await self._calls.asked(call)
        member = Member(held, call, body, inputs, asyncio.get_running_loop().create_future())
        batching = self._pool.batching
        if batching.max_wait_s <= 0 or len(inputs.items) >= batching.max_items:
            await self.seated(held)
            return await self._calls.alone(member)
        shared = self._join(member) or await self._begin(member)
        try:
            return await member.answer
        finally:
            self._leave(shared, member)

    def _join(self, member: Member) -> _Shared | None:
        """Into the open call of its kind; None where there is none with room for it."""
        shared = self._open.get(member.key)
        if shared is None:
            return None
        if shared.items + len(member.inputs.items) > self._pool.batching.max_items:
            self._go(shared)
            return None
        if self.seats is not None:
            self.seats.ride(member.held)
        self._add(shared, member)
        return shared

    async def _begin(self, member: Member) -> _Shared:
        """A new call, which goes out after the wait."""
        await self.seated(member.held)
        shared = self._join(member)  # while it waited for a slot, another may have begun one
        if shared is not None:
            return shared
        shared = self._open[member.key] = _Shared(member.key, member.held)
        wait_s = self._pool.batching.max_wait_s
        shared.timer = asyncio.get_running_loop().call_later(wait_s, self._go, shared)
        self._add(shared, member)
        if shared.running is None and self.seats is not None:
            self.seats.fill()
        return shared

    def _add(self, shared: _Shared, member: Member) -> None:
        shared.members.append(member)
        shared.items += len(member.inputs.items)
        if shared.items >= self._pool.batching.max_items or len(shared.members) >= _MOST_TASKS:
            self._go(shared)

    def _go(self, shared: _Shared) -> None:
        self._close(shared)
        shared.running = asyncio.create_task(self._call(shared, tuple(shared.members)))
        self._running.add(shared.running)
        shared.running.add_done_callback(self._running.discard)

    def _close(self, shared: _Shared) -> None:
        """To those who come later."""
        if shared.timer is not None:
            shared.timer.cancel()
        if self._open.get(shared.key) is shared:
            del self._open[shared.key]

    def _leave(self, shared: _Shared, member: Member) -> None:
        """Answered, cancelled or past its deadline."""
        shared.members.remove(member)
        if shared.running is None:
            shared.items -= len(member.inputs.items)
        elif shared.running.done():
            return
        if not shared.members:
            self._close(shared)
            if shared.running is not None:
                shared.running.cancel()
        elif shared.seat is member.held and self.seats is not None:
            shared.seat = shared.members[0].held
            self.seats.sit(shared.seat)

    async def _call(self, shared: _Shared, members: Sequence[Member]) -> None:
        """Sets every member's answer; those that left meanwhile are passed over."""
        try:
            if len(members) == 1 or not await self._calls.together(members):
                await self._calls.each(members)
        except asyncio.CancelledError:
            pass  # by the last that left, or with the whole worker
        finally:
            for member in shared.members:
                fail(member, BackendFault(FailureKind.INTERNAL, _BROKEN))


class _Rider:
    """ports.ModelClient for one try."""

    def __init__(self, batches: EmbedBatches, held: Held, body: Mapping[str, Any]) -> None:
        self._batches, self._held, self._body = batches, held, body

    async def events(self, call: ModelCall) -> AsyncIterator[Sequence[Answer]]:
        yield [await self._batches.answer(self._held, self._body, call)]

    async def aclose(self) -> None:
        """Holds nothing."""
