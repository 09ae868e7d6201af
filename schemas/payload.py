"""Bodies and answers travel `inline` or, above 256 KiB, as a `claim` on a blob.

An inline payload is the client's own JSON: written once, never re-encoded. Producers may hand in an
`orjson.Fragment`, so that bytes that were already checked are copied and not parsed again.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

INLINE_LIMIT_BYTES = 256 * 1024
REQUEST_LIMIT_BYTES = 8 * 1024 * 1024


class Claim(BaseModel):
    """A blob: `key` in the fleet's blob store, the hex SHA-256 of its bytes, its size in bytes."""

    model_config = ConfigDict(frozen=True)

    key: str = Field(min_length=1, max_length=512)
    sha256: str = Field(min_length=64, max_length=64)
    size: int = Field(ge=0)


class Payload(BaseModel):
    """Exactly one of `inline` (any JSON value but null) and `claim`."""

    model_config = ConfigDict(frozen=True)

    inline: Any = None
    claim: Claim | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Payload:
        if (self.inline is None) == (self.claim is None):
            raise ValueError("expected exactly one of inline and claim")
        return self
