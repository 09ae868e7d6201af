"""Model backends: one try at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.failures import FailureKind
from services.core.fleet import Timeouts


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One try at a model. `body` is the JSON to POST; `streaming` whether the answer is read as SSE."""

    base_url: str
    path: str
    body: bytes
    attempt: str
    streaming: bool
    timeouts: Timeouts
    headers: Mapping[str, str] = field(default_factory=dict)


class BackendFault(Exception):  # noqa: N818 - a fault, by this project's words
    """A try failed. `message` is safe to show: never the backend's key or a prompt.

    The backend's own words are shown only for the kinds that are the caller's to mend.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.status = kind, message, status
        self.code, self.param, self.retry_after_s = code, param, retry_after_s


class ModelClient(Protocol):
    """Calls one kind of model backend. Cancelling the iteration closes the connection at once."""

    def events(self, call: ModelCall) -> AsyncIterator[Sequence[dict[str, Any]]]:
        """Yields the JSON objects of the stream, in the batches they arrived in; an unstreamed answer is one.

        Ends after [DONE] or the end of the body. Raises BackendFault; connect and first-byte time-outs are
        enforced here, the guards on content by the caller.
        """
        ...

    async def aclose(self) -> None: ...
