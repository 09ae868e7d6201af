"""When which process dies: drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """`at_s` seconds after the load began."""

    at_s: float
    victim: str


def draw(victims: Sequence[str], times_each: int, *, seed: int, gap_s: float, start_s: float) -> list[Kill]:
    """Each victim `times_each` times in random order, `gap_s` apart on average and at least half of that."""
    chance = random.Random(seed)
    order = [victim for victim in victims for _ in range(times_each)]
    chance.shuffle(order)
    kills, at_s = [], start_s
    for victim in order:
        kills.append(Kill(round(at_s, 3), victim))
        at_s += gap_s * chance.uniform(0.5, 1.5)
    return kills
