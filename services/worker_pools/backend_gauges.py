"""What a worker shows of its backends: a series for each, labelled by its place in the fleet file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.core.backend_metrics import ServerLoad
from services.ports import Connections
from services.worker_pools.backends import Backends

_LABELS = ("pool", "backend")
_HEALTH = {"healthy": 0, "slow": 1, "unavailable": 2}
_BREAKER = {"closed": 0, "half_open": 1, "open": 2}
_TEXTS = {
    "health": "0 healthy, 1 slow, 2 unavailable",
    "breaker": "0 closed, 1 half-open, 2 open",
    "tokens_in_flight": "Predicted work of the tries that run there, in weighted tokens",
    "connections_open": "Kept connections that are open",
    "connections_in_use": "Connections with a try on them",
    "running": "Requests in work, as the server says",
    "waiting": "Requests that wait inside the server, as it says",
    "cache_share": "Share of its cache in use, as the server says",
    "gpu_share": "Share of its GPU in use, as the server says",
}


class BackendGauges(Collector):
    """Asked at each scrape. Without `connections` none are counted."""

    def __init__(self, pool: str, backends: Backends, connections: Connections | None) -> None:
        self._pool = pool
        self._backends = backends
        self._connections = connections

    def collect(self) -> Iterable[Metric]:
        found: dict[str, GaugeMetricFamily] = {
            name: GaugeMetricFamily(f"chimera_backend_{name}", text, labels=_LABELS)
            for name, text in _TEXTS.items()
        }
        for index, values in enumerate(self._values()):
            for name, value in values.items():
                if value is not None:
                    found[name].add_metric((self._pool, str(index)), value)
        return found.values()

    def _values(self) -> Iterable[dict[str, float | None]]:
        for state, load in zip(self._backends.states(), self._backends.loads(), strict=True):
            values: dict[str, float | None] = {
                "health": _HEALTH[state.health],
                "breaker": _BREAKER[state.breaker],
                "tokens_in_flight": state.tokens_in_flight,
            }
            if self._connections is not None:
                values["connections_open"] = self._connections.open_count(state.base_url)
                values["connections_in_use"] = state.in_flight
            yield values | {one.name: getattr(load, one.name) for one in fields(ServerLoad)}
