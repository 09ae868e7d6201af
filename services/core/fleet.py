"""The fleet as value objects: what `fleet.yaml` says of pools, once it has been validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.messages import Usage
from schemas.topics import Priority, TopicNames, TopicSpec, fleet_topics

BackendKind = Literal["openai", "simulated"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. connect <= first_token <= total; idle and the minimum rate guard what comes after content."""

    connect_s: float = 2.0
    first_token_s: float = 30.0
    idle_s: float = 15.0
    total_s: float = 120.0
    min_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """USD. Tokens are priced by the million; a request and a second of work by one."""

    input_per_mtok: float = 0.0
    cached_per_mtok: float | None = None  # None: cached input costs what other input costs
    output_per_mtok: float = 0.0
    per_request: float = 0.0
    per_second: float = 0.0

    def cost_usd(self, usage: Usage, seconds: float) -> float:
        cached_price = self.input_per_mtok if self.cached_per_mtok is None else self.cached_per_mtok
        cached = min(usage.cached_tokens, usage.input_tokens)
        tokens = (
            (usage.input_tokens - cached) * self.input_per_mtok
            + cached * cached_price
            + usage.output_tokens * self.output_per_mtok
        )
        return tokens / 1e6 + self.per_request + seconds * self.per_second


@dataclass(frozen=True, slots=True)
class SimulatedLaw:
    """How long a simulated backend takes: mean_s +- spread (a share), the first token at ttft_share of it."""

    mean_s: float = 0.0
    spread: float = 0.0
    ttft_share: float = 0.2
    output_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Pool:
    """Interchangeable backends of one model. Its name is the capability that is its alone: its lanes have it.

    quality: a prior in 0..1; context_tokens: input and output together; prior_seconds: of a usual task, until
    live figures are there.
    """

    name: str
    model: str
    version: str = ""
    provider: str = "local"
    backend: BackendKind = "openai"
    backend_model: str = ""  # the name that the backend knows the model by
    base_urls: tuple[str, ...] = ()
    api_key_env: str | None = None
    capabilities: frozenset[str] = frozenset({"chat"})
    features: frozenset[str] = frozenset()
    slots: int = 4
    quality: float = 0.5
    price: Price = Price()
    context_tokens: int = 4096
    timeouts: Timeouts = Timeouts()
    streaming: bool = True
    stream_usage: bool = True  # takes `stream_options`; without it usage is estimated, and marked so
    prior_seconds: float = 1.0
    simulated: SimulatedLaw | None = None


DEFAULT_DEADLINES_S: Mapping[Priority, float] = {"interactive": 120.0, "standard": 900.0, "batch": 86_400.0}
DEFAULT_WEIGHTS: Mapping[Priority, int] = {"interactive": 8, "standard": 3, "batch": 1}


@dataclass(frozen=True, slots=True)
class Fleet:
    """All pools and the defaults that hold for every task."""

    pools: tuple[Pool, ...]
    prefix: str = "chimera."
    partitions: int = 8
    deadlines_s: Mapping[Priority, float] = field(default_factory=lambda: dict(DEFAULT_DEADLINES_S))
    weights: Mapping[Priority, int] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    max_tries: int = 3

    def topics(self) -> tuple[TopicSpec, ...]:
        """All that the broker must have for it."""
        names = TopicNames(self.prefix)
        return fleet_topics(names, [pool.name for pool in self.pools], self.partitions)

    def pool(self, name: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.name == name), None)
