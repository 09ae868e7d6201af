"""What a process could not say before it died, for whoever starts after it on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.ports.bus import OutRecord


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What one dead process had not got rid of. Its finder says `forget` once the broker has all of it."""

    records: Sequence[OutRecord]
    forget: Callable[[], None]


class Journal(Protocol):
    """Records that the broker has not acknowledged yet. It outlives its process, not its machine."""

    def keep(self, name: str, record: OutRecord) -> None:
        """At once, under a name of the caller's. Never raises: what cannot be kept is logged."""
        ...

    def heard(self, name: str) -> None:
        """The broker has that record, whether it was kept or not."""
        ...

    def left_behind(self) -> Iterator[LeftBehind]:
        """Of each process that is gone; nobody else finds the same meanwhile."""
        ...

    def close(self) -> None:
        """Where everything kept was heard nothing is left behind."""
        ...
