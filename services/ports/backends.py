"""What is asked of a model backend beside the tries: is it there, how loaded is it, its connections."""

from __future__ import annotations

from typing import Literal, Protocol

from services.core.backend_metrics import ServerLoad

Presence = Literal["ready", "loading", "unreachable", "silent"]
"""silent: it took the connection and said nothing in time, or broke it: that says nothing either way."""


class MetricsAbsent(Exception):  # noqa: N818 - reads as the outcome it is
    """The server has no metrics, or none that are known: asking again soon is of no use."""


class BackendLook(Protocol):
    """Never waits long, whatever the server does, and never in the way of a try."""

    async def presence(self, base_url: str) -> Presence:
        """Whether it serves, as GET /health says, or GET /v1/models where there is none."""
        ...

    async def load(self, base_url: str) -> ServerLoad | None:
        """What GET /metrics says; None where it did not answer this time. Raises MetricsAbsent."""
        ...

    async def aclose(self) -> None: ...


class Connections(Protocol):
    """The kept connections of the tries."""

    async def open_early(self, base_url: str, count: int) -> int:
        """Opens up to `count` before they are needed; returns how many came about. Never raises."""
        ...

    def open_count(self, base_url: str) -> int:
        """How many are open now, idle ones too."""
        ...
