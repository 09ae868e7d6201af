"""The fleet as value objects: what `fleet.yaml` says of pools, once it has been validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from schemas.messages import DataPolicy, TaskKind, Usage
from schemas.topics import Priority, TopicNames, TopicSpec, fleet_topics

BackendKind = Literal["openai", "anthropic", "http", "mcp", "simulated"]

_OF_MODELS: frozenset[TaskKind] = frozenset({"chat", "completion", "embedding"})
_KINDS: Mapping[BackendKind, frozenset[TaskKind]] = {
    "openai": _OF_MODELS,
    "simulated": _OF_MODELS,
    "anthropic": frozenset({"chat"}),
    "http": frozenset({"tool"}),
    "mcp": frozenset({"tool"}),
}


def does(backend: BackendKind, kind: TaskKind) -> bool:
    """Whether a backend of this kind can be asked for tasks of that kind at all."""
    return kind in _KINDS[backend]


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
class SimulatedFailures:
    """Shares of the calls that end so, 1 together at most: the connection broken before an answer, 429, 500,
    silence, the stream broken after content, an answer that says nothing."""

    reset: float = 0.0
    rate_limited: float = 0.0
    error: float = 0.0
    hang: float = 0.0
    interrupt: float = 0.0
    empty: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedLaw:
    """How long a simulated backend takes, and how often it fails. Seconds; tokens of the answer are fixed.

    Either mean_s: a call takes mean_s * (1 + spread * x), the first token at ttft_share of it. Or by tokens:

        queue + (1 + spread * x) * (prefill_s_per_1k * input / 1000 + sum over output tokens of step(b))
        step(b) = decode_s_per_token + decode_s_per_neighbour * (b - 1)

    with x uniform in [-1, 1), b the calls in work when the token is made, and the first token behind the
    prefill and one step (an engine with continuous batching: measured steps grow about linearly with b).
    queue is the wait for one of its own `slots` (0: it has no bound); where `queue` others wait, it is
    refused as 503. With a seed the k-th call of a process draws the same in every run.
    """

    mean_s: float = 0.0
    spread: float = 0.0
    ttft_share: float = 0.2
    output_tokens: int = 32
    prefill_s_per_1k: float = 0.0
    decode_s_per_token: float = 0.0
    decode_s_per_neighbour: float = 0.0
    slots: int = 0
    queue: int | None = None
    failures: SimulatedFailures = SimulatedFailures()
    seed: int | None = None

    def prefill_s(self, input_tokens: int) -> float:
        return self.prefill_s_per_1k * input_tokens / 1000

    def step_s(self, batch: int) -> float:
        """Seconds for a token of each of `batch` calls in work."""
        return self.decode_s_per_token + self.decode_s_per_neighbour * max(0, batch - 1)

    @property
    def by_tokens(self) -> bool:
        return bool(self.prefill_s_per_1k or self.decode_s_per_token or self.decode_s_per_neighbour)


@dataclass(frozen=True, slots=True)
class BreakerLaw:
    """When a backend is left alone: `failure_rate` of at least `min_calls` within `window_s` were its fault.

    The first cool-down is cooldown_s; while probes fail it doubles up to cooldown_most_s. A backend whose
    first tokens take slow_factor times what they usually take is `slow`.
    """

    window_s: float = 30.0
    min_calls: int = 5
    failure_rate: float = 0.5
    cooldown_s: float = 5.0
    cooldown_most_s: float = 120.0
    slow_factor: float = 3.0


@dataclass(frozen=True, slots=True)
class Batching:
    """Embedding inputs of several tasks in one call: at most max_items, none waits above max_wait_s."""

    max_items: int = 32
    max_wait_s: float = 0.01


@dataclass(frozen=True, slots=True)
class Azure:
    """Azure OpenAI: the deployment is in the path, the version in the query, the key in `api-key`."""

    deployment: str
    api_version: str


@dataclass(frozen=True, slots=True)
class Mcp:
    """An MCP tool server: a command to start (stdio), or the pool's base_url (streamable HTTP)."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(
        default_factory=dict
    )  # a value may be env:NAME, a variable of the worker's


def env_name(value: str) -> str | None:
    """The variable that `env:NAME` means; None for any other value."""
    return value.removeprefix("env:") if value.startswith("env:") else None


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator, or a host, that several pools share: `slots` tries at once over all of them."""

    name: str
    slots: int


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
    external: bool = False  # its provider sees the data: never for tasks whose data policy is `local`
    fallbacks: tuple[str, ...] = ()  # pools that may do what was asked of this one by name
    device: str | None = None  # shared with other pools: their slots come out of one budget
    device_reserved: int = 1  # slots of the device that are this pool's alone
    min_slots: int = 1  # the adaptive limit moves between this and `slots`
    adaptive: bool = True
    reserved_interactive: int = 0  # slots that only interactive work takes
    breaker: BreakerLaw = BreakerLaw()
    batching: Batching = Batching()
    warm_up: bool = True  # one short call to each backend before the first task
    floor: str | None = None  # the degraded answer, for requests that allow it, when all else failed
    azure: Azure | None = None
    mcp: Mcp | None = None

    def takes(self, data_policy: DataPolicy) -> bool:
        """Whether its provider may see data of this policy."""
        return data_policy == "any" or not self.external

    def secret_names(self) -> tuple[str, ...]:
        """The environment variables that it needs; none of their values may be shown."""
        named = [env_name(value) for value in (self.mcp.env.values() if self.mcp else ())]
        return tuple(name for name in (self.api_key_env, *named) if name)


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
    devices: tuple[Device, ...] = ()
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # 1 where not named
    evict_batch: bool = True  # a running batch task gives its slot to interactive work that would be late
    interactive_wait_s: float = 0.05  # what interactive work may wait before batch work is evicted for it

    def topics(self) -> tuple[TopicSpec, ...]:
        """All that the broker must have for it."""
        names = TopicNames(self.prefix)
        return fleet_topics(names, [pool.name for pool in self.pools], self.partitions)

    def pool(self, name: str) -> Pool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def device(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.name == name), None)
