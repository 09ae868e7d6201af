"""The ingress's metrics, under exactly these names; no `_created` and no added `_total`.

A collector of our own keeps plain numbers (the event loop is the only writer) and names samples as they are:
prometheus-client's Counter would rename `llm_token_usage` and add a `_created` series to everything. Labels
are bounded: a model that the fleet does not have counts as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.core.fleet import Pool
from services.ingress.call_record import CallRecord
from services.ingress.errors import SLOW_READER

OTHER = "other"
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_BOUND_LABELS = (*map(str, _BOUNDS_S), "+Inf")


class _Histogram:
    """Counts by bucket and the sum, per label values."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * len(_BOUND_LABELS))
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        self._counts[labels][bisect_left(_BOUNDS_S, value)] += 1
        self._sums[labels] += value

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for bound, count in zip(_BOUND_LABELS, counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(labels, buckets, self._sums[labels])
        return family


class IngressMetrics(Collector):
    """Counts requests as they end; `text` is what /metrics answers."""

    def __init__(
        self,
        pools: Iterable[Pool],
        in_flight: Mapping[str, int],
        census: Callable[[], Mapping[tuple[str, str], int]],
    ) -> None:
        self._models, self._pools = frozenset[str](), frozenset[str]()
        self.know(pools)
        self._in_flight = in_flight
        self._census = census
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._tokens: Counter[tuple[str, ...]] = Counter()
        self._duration = _Histogram(
            "llm_request_duration_seconds",
            "From the request's arrival to the answer's end",
            ("model", "task_type"),
        )
        self._first_token = _Histogram(
            "llm_time_to_first_token_seconds",
            "From the arrival of a streamed request to its first content",
            ("model",),
        )
        self._queue = _Histogram(
            "llm_queue_wait_seconds", "From the lane record to the start of the try", ("model",)
        )
        self._slow_readers = 0
        self._stages = _Histogram("llm_stage_seconds", "Where the time of a success went", ("stage",))
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def know(self, pools: Iterable[Pool]) -> None:
        """These may be labels from now on, beside those that were."""
        pools = tuple(pools)
        self._models |= {pool.model for pool in pools}
        self._pools |= {pool.name for pool in pools}

    def ended(self, record: CallRecord) -> None:
        """Books one call of a model that has ended; its status is known."""
        if record.task_type is None or record.status is None:
            return
        self._slow_readers += record.reason == SLOW_READER
        model = record.model if record.model in self._models else OTHER
        self._requests[(model, record.task_type, record.status)] += 1
        self._duration.observe((model, record.task_type), record.elapsed_s())
        if record.usage is not None:
            self._tokens[(model, "input")] += record.usage.input_tokens
            self._tokens[(model, "output")] += record.usage.output_tokens
        if record.first_token_s is not None:
            self._first_token.observe((model,), record.first_token_s)
        if record.queue_s is not None:
            self._queue.observe((model,), record.queue_s)
        if record.status == "ok":
            for stage, seconds in record.stages.items():
                self._stages.observe((stage,), seconds)

    def text(self) -> bytes:
        """The text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        labels = ("model", "task_type", "status")
        # A counter's family is named without `_total`; its samples are named with it.
        yield _counts("llm_request", "counter", "llm_request_total", "Requests ended", labels, self._requests)
        # The established name has no `_total`, so its type cannot be said; it only grows.
        names = ("model", "direction")
        yield _counts(
            "llm_token_usage", "unknown", "llm_token_usage", "Tokens, as billed", names, self._tokens
        )
        in_flight: dict[tuple[str, ...], int] = {(pool,): count for pool, count in self._in_flight.items()}
        yield _counts(
            "llm_requests_in_flight",
            "gauge",
            "llm_requests_in_flight",
            "Tasks waited for",
            ("pool",),
            in_flight,
        )
        workers: Counter[tuple[str, ...]] = Counter()
        for (pool, state), count in self._census().items():
            workers[(pool if pool in self._pools else OTHER, state)] += count
        name = "chimera_fleet_workers"
        yield _counts(name, "gauge", name, "Workers, as they beat", ("pool", "state"), workers)
        name, text = "chimera_slow_readers", "Streams cut off because their client did not read them"
        yield _counts(name, "counter", f"{name}_total", text, (), {(): self._slow_readers})
        for histogram in (self._duration, self._first_token, self._queue, self._stages):
            yield histogram.family()


def _counts(
    family: str,
    kind: str,
    sample: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], int],
) -> Metric:
    metric = Metric(family, text, kind)
    for named, value in values.items():
        metric.add_sample(sample, dict(zip(labels, named, strict=True)), value)
    return metric
