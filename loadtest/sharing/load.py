"""What is sent in one round, drawn from a seed: the same arrivals in both arms, more beside them in one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.topics import Priority
from services.core.work_size import used_tokens

SLOTS = 4
CHUNK_TOKENS = 32
CHUNK_S = 0.025  # of an answer: its service time is this for each chunk
PROMPT_TOKENS = 2
TENANTS = ("north", "east", "south", "west")
FLOODING = TENANTS[0]
_LONGEST_S = 3.0
_LUCK, _DRAWS = 0.02, 10_000
_PREDICTED_SPREAD = 0.3  # sigma of the log of predicted over real tokens


@dataclass(frozen=True, slots=True)
class Law:
    """Service times: log-normal, with this mean in seconds and this sigma of the logarithm."""

    mean_s: float
    sigma: float

    def __str__(self) -> str:
        return f"log-normal, mean {self.mean_s} s, sigma {self.sigma}"

    def chunks(self, draw: random.Random) -> int:
        mu = math.log(self.mean_s) - self.sigma**2 / 2
        seconds = min(_LONGEST_S, draw.lognormvariate(mu, self.sigma))
        return max(1, round(seconds / CHUNK_S))


INTERACTIVE = Law(0.3, 1.0)
BATCH = Law(0.1, 0.5)
TENANT_WORK = Law(0.2, 0.5)


@dataclass(frozen=True, slots=True)
class Job:
    """`at_s` after the round's begin; `tokens`: what the publisher would predict; `floods`: more than the
    slots can do, so that some of it is never done."""

    at_s: float
    priority: Priority
    tenant: str
    chunks: int
    tokens: float
    floods: bool = False


def arrivals(
    seed: str,
    load: float,
    law: Law,
    seconds: float,
    *,
    priority: Priority = "interactive",
    tenant: str = "default",
    floods: bool = False,
) -> list[Job]:
    """Poisson arrivals that keep a share `load` of all slots busy: drawn again until they do within 2 %, as a
    short round's own luck is ten times that and moves every wait."""
    draw = random.Random(seed)
    for _ in range(_DRAWS):
        jobs = [
            Job(at_s, priority, tenant, chunks, _predicted_tokens(chunks, draw), floods)
            for at_s, chunks in _drawn(draw, load * SLOTS / law.mean_s, law, seconds)
        ]
        busy_s = sum(job.chunks for job in jobs) * CHUNK_S
        if abs(busy_s / (seconds * SLOTS) - load) <= _LUCK * load:
            return jobs
    raise ValueError(f"{seconds} s at {load:.0%} of the slots: too short for any draw to be within 2 % of it")


def _drawn(draw: random.Random, rate: float, law: Law, seconds: float) -> Iterable[tuple[float, int]]:
    at_s = draw.expovariate(rate)
    while at_s < seconds:
        yield at_s, law.chunks(draw)
        at_s += draw.expovariate(rate)


def _predicted_tokens(chunks: int, draw: random.Random) -> float:
    real = used_tokens(PROMPT_TOKENS, chunks * CHUNK_TOKENS)
    return real * draw.lognormvariate(0, _PREDICTED_SPREAD)


def beside_batch(seed: str, seconds: float, *, loaded: bool) -> list[Job]:
    """Interactive work for 70 % of the slots, alone or beside batch work for three times all of them."""
    jobs = arrivals(f"{seed}/i", 0.7, INTERACTIVE, seconds)
    if loaded:
        jobs += arrivals(f"{seed}/b", 3.0, BATCH, seconds, priority="batch", floods=True)
    return in_order(jobs)


def beside_flood(seed: str, seconds: float, *, loaded: bool) -> list[Job]:
    """Four tenants that ask for 20 % of the slots each; loaded, one of them asks ten times as much."""
    jobs: list[Job] = []
    for tenant in TENANTS:
        floods = loaded and tenant == FLOODING
        jobs += arrivals(f"{seed}/{tenant}", 0.2, TENANT_WORK, seconds, tenant=tenant, floods=floods)
    if loaded:
        jobs += arrivals(f"{seed}/flood", 1.8, TENANT_WORK, seconds, tenant=FLOODING, floods=True)
    return in_order(jobs)


def in_order(jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: job.at_s)
