"""Slots for a worker's /metrics: what it may run, what a backend does with, what a device's pools have."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.core.device_slots import DeviceSlots
from services.worker_pools.device_claims import DeviceClaims
from services.worker_pools.slot_budget import SlotBudget


class SlotGauges(Collector):
    """Read at each scrape. Labels are those of the fleet file."""

    def __init__(self, pool: str, budget: SlotBudget, claims: DeviceClaims | None) -> None:
        self._pool, self._budget = pool, budget
        self._device = None if claims is None else claims.slots

    def collect(self) -> Iterable[Metric]:
        slots = GaugeMetricFamily(
            "chimera_worker_slots", "Tries that this worker may run now", labels=("pool",)
        )
        slots.add_metric((self._pool,), self._budget.limit)
        limits = GaugeMetricFamily(
            "chimera_backend_slot_limit",
            "Tries at once that a backend does with, by latency and refusals",
            labels=("pool", "backend"),
        )
        for url, limit in self._budget.limits().items():
            limits.add_metric((self._pool, url), limit)
        return [slots, limits] if self._device is None else [slots, limits, _shared(self._device)]


def _shared(device: DeviceSlots) -> Metric:
    """As this worker has read the claims: the same at every worker that has read as far."""
    shared = GaugeMetricFamily(
        "chimera_device_slots",
        "Slots of a shared device, by pool",
        labels=("device", "pool", "kind"),
    )
    for pool in device.pools():
        for kind, value in (("granted", pool.granted), ("used", pool.used), ("wanted", pool.wanted)):
            shared.add_metric((device.device.name, pool.pool, kind), value)
    return shared
