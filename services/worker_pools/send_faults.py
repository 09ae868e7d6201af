"""What a worker could not send, for its /metrics: read from whoever counts it, at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from services.ports import Publisher


class SendFaults(Collector):
    """`producers` by the name that is their label."""

    def __init__(
        self,
        pool: str,
        producers: Mapping[str, Publisher],
        chunks_dropped: Callable[[], int],
        beats_unsent: Callable[[], int] = lambda: 0,
    ) -> None:
        self._pool = pool
        self._producers = producers
        self._chunks_dropped = chunks_dropped
        self._beats_unsent = beats_unsent

    def collect(self) -> Iterable[Metric]:
        posts = CounterMetricFamily(
            "chimera_worker_posts_unacknowledged",
            "Records posted and not acknowledged",
            labels=("pool", "producer"),
        )
        replaced = CounterMetricFamily(
            "chimera_worker_producers_replaced",
            "Producers given up and replaced",
            labels=("pool", "producer"),
        )
        dropped = CounterMetricFamily(
            "chimera_worker_chunks_dropped",
            "Token chunks that the backlog had no room for; the terminal record repairs them",
            labels=("pool",),
        )
        beats = CounterMetricFamily(
            "chimera_worker_beats_unacknowledged",
            "Heartbeats that were not acknowledged in time",
            labels=("pool",),
        )
        for name, publisher in self._producers.items():
            posts.add_metric((self._pool, name), publisher.post_faults)
            replaced.add_metric((self._pool, name), publisher.recreated)
        dropped.add_metric((self._pool,), self._chunks_dropped())
        beats.add_metric((self._pool,), self._beats_unsent())
        return posts, replaced, dropped, beats
