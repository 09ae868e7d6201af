"""Which workers are gone, of those that somebody waits for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from services.core.fleet_table import FleetTable


class GoneWorkers:
    """Dead in the table, or in none for `grace_s`: it left, was forgotten, or is yet to be heard of."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._unheard_since_s: dict[str, float] = {}

    def among(self, workers: Collection[str], table: FleetTable, now_s: float) -> list[str]:
        """Asked again and again, of a table that is caught up; who is asked for no more is forgotten."""
        self._unheard_since_s = {
            worker: self._unheard_since_s.get(worker, now_s)
            for worker in workers
            if table.member(worker) is None
        }
        return [worker for worker in workers if self._is_gone(worker, table, now_s)]

    def _is_gone(self, worker: str, table: FleetTable, now_s: float) -> bool:
        since_s = self._unheard_since_s.get(worker)
        return table.is_dead(worker, now_s) if since_s is None else now_s - since_s >= self._grace_s
