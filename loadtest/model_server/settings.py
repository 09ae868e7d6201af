"""What one model server is told at its start; frozen, checked before it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ServerSettings(BaseModel):
    """Times in seconds. A time that a request scripts replaces the server's own for that request."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535, description="0 takes a free one")
    port_file: Path | None = Field(default=None, description="gets the port once the server listens")
    log_file: Path | None = Field(default=None, description="gets one JSON line per ended attempt")
    model: str = "model-server"
    seed: int = 0
    slots: int = Field(default=0, ge=0, description="requests in work at once, the rest queue; 0: no limit")
    embedding_dimensions: int = Field(default=64, ge=1, le=8192)
    keep_alive_s: float = Field(default=0.0, ge=0, description="idle connections are closed; 0: never")
    most_inputs: int = Field(default=2048, ge=1, description="of an embeddings call; more are refused")
    kept_attempts: int = Field(default=200_000, ge=1, description="ended attempts that /log remembers")

    chunks: int = Field(default=8, ge=0, description="content chunks of an answer that is not scripted")
    chunk_tokens: int = Field(default=1, ge=1, description="words per content chunk")

    delay_s: float = Field(default=0.0, ge=0, description="before the first byte")
    ttft_s: float = Field(default=0.0, ge=0, description="from the head of the answer to its first content")
    chunk_interval_s: float = Field(default=0.0, ge=0, description="between two content chunks")
    prefill_s_per_token: float = Field(default=0.0, ge=0, description="adds to ttft_s per prompt token")
    decode_s_per_token: float = Field(default=0.0, ge=0, description="adds to chunk_interval_s per token")
    tokens_per_s: float | None = Field(default=None, gt=0, description="1 / decode_s_per_token, said instead")
    decode_s_per_neighbour: float = Field(
        default=0.0, ge=0, description="adds to decode_s_per_token per other request in work"
    )
    jitter: float = Field(default=0.0, ge=0, le=1, description="scales times by 1 +- jitter, seeded")

    @model_validator(mode="after")
    def _one_speed(self) -> Self:
        if self.tokens_per_s is not None and self.decode_s_per_token:
            raise ValueError("tokens_per_s and decode_s_per_token say the same: give one")
        return self

    @property
    def step_s(self) -> float:
        """Seconds per token of a request that is alone."""
        return self.decode_s_per_token if self.tokens_per_s is None else 1 / self.tokens_per_s
