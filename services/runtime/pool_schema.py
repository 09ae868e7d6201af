"""A pool in `fleet.yaml`: one frozen model per mapping, every key with its unit and default."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from services.core.fleet import (
    Azure,
    BackendKind,
    Batching,
    BreakerLaw,
    Mcp,
    Price,
    SimulatedFailures,
    SimulatedLaw,
    Timeouts,
    env_name,
)
from services.runtime.backend_offers import beyond

Capability = Literal["chat", "coding", "reasoning", "long_context", "tools", "vision", "embed", "low_cost"]
Feature = Literal["tools", "json_object", "json_schema", "vision", "logprobs", "embeddings", "completions"]
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TimeoutsEntry(Entry):
    """Seconds, and tokens per second; they must fit into each other."""

    connect_s: float = Field(default=2.0, gt=0)
    first_token_s: float = Field(default=30.0, gt=0)
    idle_s: float = Field(default=15.0, gt=0)
    total_s: float = Field(default=120.0, gt=0)
    min_tokens_per_s: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.connect_s <= self.first_token_s <= self.total_s:
            raise ValueError(
                f"connect_s {self.connect_s}, first_token_s {self.first_token_s} and total_s {self.total_s} "
                "do not fit; expected connect_s <= first_token_s <= total_s"
            )
        if self.idle_s > self.total_s:
            raise ValueError(
                f"idle_s {self.idle_s} is more than total_s {self.total_s}; expected at most that"
            )
        return self

    def to_timeouts(self) -> Timeouts:
        return Timeouts(**self.model_dump())


class PriceEntry(Entry):
    """USD: per million tokens, per request, per second of work."""

    input_per_mtok: float = Field(default=0.0, ge=0)
    cached_per_mtok: float | None = Field(default=None, ge=0)
    output_per_mtok: float = Field(default=0.0, ge=0)
    per_request: float = Field(default=0.0, ge=0)
    per_second: float = Field(default=0.0, ge=0)

    def to_price(self) -> Price:
        return Price(**self.model_dump())


class SimulatedFailuresEntry(Entry):
    """Shares of the calls that end so; together at most 1."""

    reset: float = Field(default=0.0, ge=0, le=1)
    rate_limited: float = Field(default=0.0, ge=0, le=1)
    error: float = Field(default=0.0, ge=0, le=1)
    hang: float = Field(default=0.0, ge=0, le=1)
    interrupt: float = Field(default=0.0, ge=0, le=1)
    empty: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _shares(self) -> Self:
        total = sum(self.model_dump().values())
        if total > 1 + 1e-9:
            raise ValueError(f"the shares are {total:g} together; expected at most 1")
        return self


class SimulatedEntry(Entry):
    """A law of times: mean_s, with spread and time to first token as shares of it, or seconds by tokens and
    by the calls in work; its own slots and queue; failures; a seed."""

    mean_s: float = Field(default=0.0, ge=0)
    spread: float = Field(default=0.0, ge=0, lt=1)
    ttft_share: float = Field(default=0.2, ge=0, le=1)
    output_tokens: int = Field(default=32, ge=1)
    prefill_s_per_1k: float = Field(default=0.0, ge=0)
    decode_s_per_token: float = Field(default=0.0, ge=0)
    decode_s_per_neighbour: float = Field(default=0.0, ge=0)
    slots: int = Field(default=0, ge=0)
    queue: int | None = Field(default=None, ge=0)
    failures: SimulatedFailuresEntry = SimulatedFailuresEntry()
    seed: int | None = None

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        rates = ("prefill_s_per_1k", "decode_s_per_token", "decode_s_per_neighbour")
        given = [name for name in rates if getattr(self, name)]
        if self.mean_s and given:
            raise ValueError(f"mean_s and {given[0]} both say how long it takes; expected one of them")
        if self.queue is not None and not self.slots:
            raise ValueError(f"queue {self.queue}: nothing waits without slots; expected slots of at least 1")
        return self

    def to_law(self) -> SimulatedLaw:
        failures = SimulatedFailures(**self.failures.model_dump())
        return SimulatedLaw(**self.model_dump(exclude={"failures"}), failures=failures)


class LaunchEntry(Entry):
    """A small real model that `chimera up` starts and watches as this pool's backend."""

    model: str = "smollm2"  # or the path of a .gguf file
    threads: int = Field(default=1, ge=1)
    context_per_slot: int = Field(default=2048, ge=256)


class BreakerEntry(Entry):
    """When a backend is left alone, and for how long."""

    window_s: float = Field(default=30.0, gt=0)
    min_calls: int = Field(default=5, ge=1)
    failure_rate: float = Field(default=0.5, gt=0, le=1)
    cooldown_s: float = Field(default=5.0, gt=0)
    cooldown_most_s: float = Field(default=120.0, gt=0)
    slow_factor: float = Field(default=3.0, gt=1)

    def to_law(self) -> BreakerLaw:
        return BreakerLaw(**self.model_dump())


class BatchingEntry(Entry):
    """Embedding inputs of several tasks in one call."""

    max_items: int = Field(default=32, ge=1, le=2048)
    max_wait_s: float = Field(default=0.01, ge=0, le=1)

    def to_batching(self) -> Batching:
        return Batching(**self.model_dump())


class AzureEntry(Entry):
    """The deployment of an Azure OpenAI resource; base_url is the resource's."""

    deployment: str = Field(min_length=1)
    api_version: str = Field(min_length=1)

    def to_azure(self) -> Azure:
        return Azure(**self.model_dump())


class McpEntry(Entry):
    """A tool server: a command to start, or, with none, the pool's base_url.

    env: the variables of the command beside PATH, HOME and their like; `env:NAME` takes the worker's NAME.
    """

    command: list[Annotated[str, Field(min_length=1)]] = []
    env: dict[str, str] = {}

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            source = env_name(value)
            if source is not None and not VARIABLE.fullmatch(source):
                raise ValueError(f"{name}: expected env: and the name of a variable")
            if source is None and SECRET_NAME.search(name.upper()):
                raise ValueError(f"{name}: expected a reference such as env:{name}, never the secret itself")
        return env

    def to_mcp(self) -> Mcp:
        return Mcp(tuple(self.command), dict(self.env))


class PoolEntry(Entry):
    """Interchangeable backends of one model."""

    name: str
    model: str = Field(min_length=1, max_length=128)
    version: str = ""
    provider: str = "local"
    backend: BackendKind = "openai"
    backend_model: str = ""
    base_url: str | None = None
    base_urls: list[str] = []
    api_key: str | None = None
    launch: LaunchEntry | None = None
    simulated: SimulatedEntry | None = None
    capabilities: list[Capability] = Field(default=["chat"], min_length=1, validate_default=True)
    features: list[Feature] = []
    slots: int = Field(default=4, ge=1, le=4096)
    quality: float = Field(default=0.5, ge=0, le=1)
    price: PriceEntry = PriceEntry()
    context_tokens: int = Field(default=4096, ge=1)
    timeouts: TimeoutsEntry | None = None
    streaming: bool = True
    stream_usage: bool = True
    prior_seconds: float = Field(default=1.0, gt=0)
    external: bool = False
    fallbacks: list[str] = []
    device: str | None = None
    device_reserved: int = Field(default=1, ge=0)
    min_slots: int = Field(default=1, ge=1)
    adaptive: bool = True
    reserved_interactive: int = Field(default=0, ge=0)
    breaker: BreakerEntry = BreakerEntry()
    batching: BatchingEntry = BatchingEntry()
    warm_up: bool = True
    floor: str | None = None
    azure: AzureEntry | None = None
    mcp: McpEntry | None = None

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not NAME.fullmatch(name) or name == "auto":
            raise ValueError(
                f"{name!r}: expected lower-case letters, digits, '.', '_' or '-', and not 'auto'"
            )
        return name

    @field_validator("capabilities", "features")
    @classmethod
    def _of_its_backend(cls, said: list[str], info: ValidationInfo) -> list[str]:
        wrong = beyond(info.data["backend"], str(info.field_name), said) if "backend" in info.data else None
        if wrong is not None:
            raise ValueError(wrong)
        return said

    @field_validator("api_key")
    @classmethod
    def _referenced(cls, key: str | None) -> str | None:
        if key is not None and not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", key):
            raise ValueError("expected a reference such as env:OPENAI_API_KEY, never the key itself")
        return key

    @field_validator("base_url", "base_urls")
    @classmethod
    def _http(cls, value: str | list[str] | None) -> str | list[str] | None:
        for url in [value] if isinstance(value, str) else value or []:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r}: expected a URL such as http://127.0.0.1:8000/v1")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        addressed = bool(self.base_url) + bool(self.base_urls) + bool(self.launch)
        if self.backend == "simulated" and (addressed or self.simulated is None):
            raise ValueError(
                "backend simulated: expected the key simulated, and no base_url, base_urls or launch"
            )
        if self.backend in ("openai", "anthropic", "http") and (addressed != 1 or self.simulated is not None):
            raise ValueError(
                f"backend {self.backend}: expected exactly one of base_url, base_urls and launch"
            )
        if self.backend == "mcp" and bool(self.mcp and self.mcp.command) + addressed != 1:
            raise ValueError("backend mcp: expected either base_url or mcp.command")
        if self.azure is not None and self.backend != "openai":
            raise ValueError("azure: expected backend openai")
        return self

    @model_validator(mode="after")
    def _slots_fit(self) -> Self:
        if not self.min_slots <= self.slots:
            raise ValueError(f"min_slots {self.min_slots}: expected at most slots ({self.slots})")
        if self.reserved_interactive >= self.slots:
            raise ValueError(
                f"reserved_interactive {self.reserved_interactive}: expected fewer than slots ({self.slots})"
            )
        return self

    def urls(self) -> tuple[str, ...]:
        """The backends without a trailing /v1: the worker adds the path. A tool's URL stays as it is."""
        urls = [self.base_url] if self.base_url else self.base_urls
        if self.backend in ("http", "mcp"):
            return tuple(urls)
        return tuple(url.rstrip("/").removesuffix("/v1") for url in urls)
