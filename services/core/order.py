"""In which order a tenant's own tasks start: a policy is a rank, and the smallest goes first.

A rank is fixed when a task is queued: a policy whose ranks all move alike with time keeps its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a task before its value is read. Times are seconds on the caller's clock.

    tokens: predicted weighted tokens; service_s: what they take in a slot, as seen lately.
    """

    arrived_s: float
    deadline_s: float
    tokens: float
    service_s: float


OrderName = Literal["fcfs", "sjf", "slack"]
Rank = Callable[[Known], float]
AHEAD = float("-inf")
"""The rank of what had its turn already and was interrupted by us: before all other work of its tenant."""


def fcfs(known: Known) -> float:
    """First come, first served."""
    return known.arrived_s


def sjf(known: Known) -> float:
    """Shortest predicted job first: the best mean; long tasks wait for as long as shorter ones come."""
    return known.tokens


def slack(known: Known) -> float:
    """Least slack first: who must start soonest to meet its deadline (deadline - now - service)."""
    return known.deadline_s - known.service_s


RANKS: Mapping[OrderName, Rank] = MappingProxyType({"fcfs": fcfs, "sjf": sjf, "slack": slack})
