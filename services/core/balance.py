"""Which of a pool's interchangeable backends a try goes to: the one with the least predicted work.

Work is in weighted tokens (`work_size`). Of a try that waits for its first token it is all of it, then what
is still to be produced. What a server's own metrics show beyond our tries is somebody else's work.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.fleet_messages import BackendHealth
from schemas.messages import Affinity
from services.core.work_size import INPUT_WEIGHT

SLOW_PENALTY = 3.0  # a slow backend's work counts so many times
LEAST_TAIL = 0.125  # of what was produced: what is still to come of an answer that is longer than expected
AFFINITY_FACTOR = 1.25
_PREFIX_CHARACTERS = 2_048
_LEAST_PREFIX = 1_024  # below, reading it again costs less than a wait

RandomUnit = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Predicted:
    """A try before it starts: tokens it has to read, tokens it is expected to write."""

    input_tokens: float
    output_tokens: float

    @property
    def work(self) -> float:
        return INPUT_WEIGHT * self.input_tokens + self.output_tokens

    def left(self, produced: int) -> float:
        """What is left of it once so many tokens were produced."""
        if produced <= 0:
            return self.work
        return max(self.output_tokens - produced, 1.0 + LEAST_TAIL * produced)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that may be called now. `work`: predicted, in weighted tokens."""

    name: str
    work: float
    health: BackendHealth = "healthy"

    @property
    def cost(self) -> float:
        """Its work, and what its health makes of it; plus a token, so that a slow idle one is no bargain."""
        return (self.work + 1.0) * (SLOW_PENALTY if self.health == "slow" else 1.0)


@dataclass(frozen=True, slots=True)
class Preference:
    """`key`: what wants to meet the same backend again. `usual`: the work of a usual try. `avoid`: who just
    failed the same task."""

    key: str | None = None
    affinity: Affinity = "soft"
    usual: float = 0.0
    avoid: str | None = None


def pick(candidates: Sequence[Candidate], wish: Preference, uniform: RandomUnit) -> str:
    """The name of the backend to call; there is at least one.

    The preferred one (the highest by rendezvous hash) is taken if it is not slow and costs at most
    AFFINITY_FACTOR times the least and a usual try: that much a warm prefix may be worth. `sticky` takes it
    whatever it costs.
    """
    able = [each for each in candidates if each.name != wish.avoid] or list(candidates)
    if len(able) == 1:
        return able[0].name
    least = min(each.cost for each in able)
    if wish.key is not None and wish.affinity != "off":
        preferred = max(able, key=lambda each: _rank(wish.key or "", each.name))
        within = preferred.health != "slow" and preferred.cost <= AFFINITY_FACTOR * least + wish.usual
        if within or wish.affinity == "sticky":
            return preferred.name
    best = [each for each in able if each.cost <= least]
    return best[int(uniform() * len(best))].name


def foreign_work(running: float, waiting: float, ours: int, usual: float) -> float:
    """The work of requests that a server has beside ours, by the work of a usual one of ours."""
    return max(0.0, running + waiting - ours) * usual


def affinity_key(session_id: str | None, body: Mapping[str, Any]) -> str | None:
    """A session's own, else what a long first message begins with; None where nothing is worth keeping."""
    if session_id is not None:
        return session_id
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return None
    content = messages[0].get("content")
    if not isinstance(content, str) or len(content) < _LEAST_PREFIX:
        return None
    return content[:_PREFIX_CHARACTERS]


def _rank(key: str, name: str) -> int:
    """Rendezvous hashing (Thaler and Ravishankar, 1998): a key moves only when its own backend goes.

    A CRC alone is linear, so that keys of one length would rank the names alike; multiplying mixes it.
    """
    mixed = zlib.crc32(f"{name}\n{key}".encode("utf-8", "surrogatepass"))
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    mixed = (mixed ^ (mixed >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)
