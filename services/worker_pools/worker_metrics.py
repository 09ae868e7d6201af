"""What a worker counts of itself. Labels are bounded: the pool, a stage or failure kind of a fixed set."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from services.worker_pools.tries import TryEnd

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)


class WorkerMetrics:
    def __init__(self, pool: str, registry: CollectorRegistry = REGISTRY) -> None:
        stage = Histogram(
            "chimera_worker_stage_seconds",
            "Time of a try by stage",
            ["pool", "stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._queue = stage.labels(pool, "queue")
        self._first_token = stage.labels(pool, "first_token")
        self._decode = stage.labels(pool, "decode")
        self._tries = Counter(
            "chimera_worker_tries", "Tries that ended, by how", ["pool", "end"], registry=registry
        )
        self._succeeded = self._tries.labels(pool, "succeeded")
        self._in_flight = Gauge(
            "chimera_worker_in_flight", "Tries that run now", ["pool"], registry=registry
        ).labels(pool)
        self._held = Gauge(
            "chimera_worker_held", "Tasks held: waiting, running, settling", ["pool"], registry=registry
        ).labels(pool)
        self._pool = pool
        self.show = registry.register  # of those who collect for themselves

    def watch(self, in_flight: Callable[[], int], held: Callable[[], int]) -> None:
        """Asked at each scrape."""
        self._in_flight.set_function(in_flight)
        self._held.set_function(held)

    def ended(self, end: TryEnd) -> None:
        timing = end.timing
        self._queue.observe(timing.queue_ms / 1000)
        if timing.first_token_ms:
            self._first_token.observe(timing.first_token_ms / 1000)
            self._decode.observe(timing.decode_ms / 1000)
        if end.failure is None:
            self._succeeded.inc()
        else:
            self._tries.labels(self._pool, end.failure.kind.value).inc()
