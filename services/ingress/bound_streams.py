"""Streams that have begun, by the worker whose attempt they follow: they end when it is dead in `fleet`.

So they do when it is in no table for long: it left without a word of them, or its first beat was never read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from services.core.gone_workers import GoneWorkers
from services.runtime.fleet_view import FleetView

_log = structlog.get_logger("chimera.ingress")
_UNHEARD_GRACE_S = 10.0  # as the bookkeeper's, for its tries


class Stream(Protocol):
    def lose_worker(self) -> None: ...


class BoundStreams:
    """Looked through every so often, and only while there are any."""

    def __init__(self, view: FleetView, every_s: float) -> None:
        self._view, self._every_s = view, every_s
        self._streams: dict[str, set[Stream]] = {}
        self._gone = GoneWorkers(_UNHEARD_GRACE_S)

    def add(self, worker: str, stream: Stream) -> None:
        self._streams.setdefault(worker, set()).add(stream)

    def remove(self, worker: str, stream: Stream) -> None:
        following = self._streams.get(worker, set())
        following.discard(stream)
        if not following:
            self._streams.pop(worker, None)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            for worker in self._lost():
                following = self._streams.pop(worker)
                _log.warning("streams lose their worker", worker=worker, streams=len(following))
                for stream in following:
                    stream.lose_worker()

    def _lost(self) -> list[str]:
        if not self._view.caught_up.is_set():
            return []
        return self._gone.among(list(self._streams), self._view.table, self._view.now_s())
