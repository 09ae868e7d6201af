"""What a model server says of its own load, in whichever of the known names it says it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RUNNING = frozenset(
    {
        "llamacpp:requests_processing",
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "tgi_batch_current_size",
    }
)
WAITING = frozenset(
    {
        "llamacpp:requests_deferred",
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "tgi_queue_size",
    }
)
CACHE_SHARE = frozenset(
    {
        "llamacpp:kv_cache_usage_ratio",
        "vllm:gpu_cache_usage_perc",  # shares, whatever the name says
        "vllm:kv_cache_usage_perc",
        "sglang:token_usage",
    }
)
GPU_SHARE = frozenset({"nv_gpu_utilization"})
GPU_PERCENT = frozenset({"DCGM_FI_DEV_GPU_UTIL"})
KNOWN = RUNNING | WAITING | CACHE_SHARE | GPU_SHARE | GPU_PERCENT


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Requests in work and in the server's own queue; shares in 0..1 of its cache and its GPU.

    None: it does not say. Requests are summed over a server's engines, of shares the fullest counts.
    """

    running: float | None = None
    waiting: float | None = None
    cache_share: float | None = None
    gpu_share: float | None = None


def load_of(samples: Iterable[tuple[str, float]]) -> ServerLoad | None:
    """From samples by name; None where no known name is there. A value that is no number >= 0 is dropped."""
    known = [(name, value) for name, value in samples if name in KNOWN and 0 <= value < 1e9]
    if not known:
        return None
    gpu = _values(known, GPU_SHARE) + [value / 100 for value in _values(known, GPU_PERCENT)]
    return ServerLoad(
        running=_sum(_values(known, RUNNING)),
        waiting=_sum(_values(known, WAITING)),
        cache_share=max(_values(known, CACHE_SHARE), default=None),
        gpu_share=max(gpu, default=None),
    )


def _values(samples: Iterable[tuple[str, float]], names: frozenset[str]) -> list[float]:
    return [value for name, value in samples if name in names]


def _sum(values: list[float]) -> float | None:
    return sum(values) if values else None
