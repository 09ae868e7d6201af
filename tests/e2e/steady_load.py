"""Chats of every kind at a steady pace, while something is done to the fleet; and what must hold of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from loadtest.kills.evidence import Evidence
from tests.e2e.fault_fleet import ask, ask_streamed, body, everything, text_of
from tests.e2e.staged import Scripted, new_marker, until

EVERY_S = 0.15
LONG_S = 3.0  # less than what is drained for
_CHUNKS = 30


@dataclass(slots=True)
class SteadyLoad:
    """Short and long, streamed and not, in turn; `url` is asked for each, so that it may be another one."""

    fleet: Scripted
    url: Callable[[], str]
    chats: dict[str, asyncio.Task[str]] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            long, stream = len(self.chats) % 4 == 3, len(self.chats) % 2 == 1
            self.start(long=long or len(self.chats) % 8 == 2, stream=stream)
            await asyncio.sleep(EVERY_S)

    def start(self, *, long: bool, stream: bool) -> str:
        """One chat more; returns its marker."""
        marker = new_marker()
        text = " ".join(f"{marker}-{number}" for number in range(_CHUNKS if long else 3))
        script = {"text": text, "chunks": _CHUNKS if long else 3}
        pace = {"chunk_interval_s": LONG_S / _CHUNKS} if long else {"delay_s": 0.1}
        fields = body(marker, script | pace, stream=stream)
        self._texts[marker] = text
        self.chats[marker] = asyncio.create_task(self._ask(fields, stream=stream))
        return marker

    async def _ask(self, fields: dict[str, Any], *, stream: bool) -> str:
        return await ask_streamed(self.url(), fields) if stream else text_of(await ask(self.url(), fields))

    async def all_answered_once(self) -> Evidence:
        """Each has its own whole answer, one try at the model server, one ledger row, one outcome."""
        answers = dict(zip(self.chats, await asyncio.gather(*self.chats.values()), strict=True))
        assert answers == self._texts
        tries: dict[str, list[str]] = {marker: [] for marker in self.chats}
        for record in self.fleet.server.log():
            if record.marker in tries:
                tries[record.marker].append(record.outcome)
        assert {marker: ends for marker, ends in tries.items() if ends != ["ok"]} == {}

        async def written() -> Evidence | None:
            found = await everything(self.fleet)
            known = {found.accepted.get(row["task_id"]) for row in found.tasks.values()}
            return found if tries.keys() <= known else None

        evidence = await until(written, "the rows of every chat")
        tasks = {task for task, marker in evidence.accepted.items() if marker in tries}
        assert len(tasks) == len(tries)
        ends = {task: [kind for kind, _ in evidence.terminals.get(task, [])] for task in tasks}
        assert {task: kinds for task, kinds in ends.items() if kinds != ["TaskSucceeded"]} == {}
        rows = [row["task_id"] for row in evidence.ledger.values() if row["task_id"] in tasks]
        assert sorted(rows) == sorted(tasks)
        return evidence

    def workers(self, evidence: Evidence) -> dict[str, str]:
        """Which worker did each."""
        named = {task: marker for task, marker in evidence.accepted.items() if marker in self.chats}
        rows = [row for row in evidence.ledger.values() if row["task_id"] in named]
        return {named[row["task_id"]]: row["worker"] for row in rows}


@asynccontextmanager
async def steady_load(fleet: Scripted, url: Callable[[], str] | None = None) -> AsyncIterator[SteadyLoad]:
    """Runs beside the block; nothing new is sent after it, and what is under way goes on."""
    load = SteadyLoad(fleet, url or (lambda: fleet.stage.url))
    running = asyncio.create_task(load.run())
    try:
        yield load
    except BaseException:
        for chat in load.chats.values():
            chat.cancel()
        await asyncio.gather(*load.chats.values(), return_exceptions=True)
        raise
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
