"""Open tries of workers that are dead in `fleet` are lost; workers that stay dead are taken out of the topic.

Law: only of partitions that this member owns. Who is not in the table at all (it left, or the broker forgot)
is given a grace to be heard of first. A worker that comes back ends its tries all the same: lost -> ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from services.core.fleet_table import BURY_AFTER_S
from services.core.gone_workers import GoneWorkers
from services.orchestrator.owed import send_each
from services.orchestrator.settings import BookkeeperKnobs
from services.ports import BookkeeperStore, OutRecord, Publisher
from services.runtime.fleet_view import FleetView

log = structlog.get_logger(__name__)


class LostTries:
    """`turn` is called between polls of `results`; `lost` counts tries."""

    def __init__(
        self,
        view: FleetView,
        store: BookkeeperStore,
        publisher: Publisher,
        topic: str,
        knobs: BookkeeperKnobs,
        wall_ms: Callable[[], int],
    ) -> None:
        self._view, self._store, self._publisher = view, store, publisher
        self._topic, self._knobs, self._wall_ms = topic, knobs, wall_ms
        self._owned: set[int] = set()
        self._gone = GoneWorkers(knobs.unheard_grace_s)
        self._next_s = self._next_burial_s = view.now_s()
        self.lost = 0

    def assigned(self, partitions: Collection[int]) -> None:
        self._owned |= set(partitions)

    def revoked(self, partitions: Collection[int]) -> None:
        self._owned -= set(partitions)

    async def turn(self) -> None:
        """One look, if it is time for one. Raises StoreError; what it left undone the next one finds."""
        now_s = self._view.now_s()
        if now_s < self._next_s or not self._view.caught_up.is_set():
            return
        self._next_s = now_s + self._knobs.lost_every_s
        owned = frozenset(self._owned)
        if owned:
            await self._lose(owned, now_s)
        if now_s >= self._next_burial_s:
            self._next_burial_s = now_s + self._knobs.bury_every_s
            await self._bury(now_s)

    async def _lose(self, owned: Collection[int], now_s: float) -> None:
        working = set(await self._store.open_workers(owned))
        gone = sorted(self._gone.among(working, self._view.table, now_s))
        if not gone:
            return
        lost = await self._store.lose_tries_of(gone, owned, self._wall_ms())
        if lost:
            self.lost += lost
            log.warning("tries lost with their workers", tries=lost, workers=gone[:10])

    async def _bury(self, now_s: float) -> None:
        """A compacted topic keeps the last beat of everybody who never left by itself."""
        dead = [m.beat.key for m in self._view.table.members() if now_s - m.heard_s >= BURY_AFTER_S]
        records = [OutRecord(self._topic, key.encode(), None) for key in dead]
        unsent = await send_each(self._publisher, records, timeout_s=self._knobs.ack_timeout_s)
        if dead:
            log.info("dead workers taken out of the fleet", count=len(dead) - len(unsent))
