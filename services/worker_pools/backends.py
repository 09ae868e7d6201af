"""Which of a pool's backends a try goes to, and what is known of each: breaker, back-pressure, health, work.

Law: a lease is given back once, on every path. While no backend may be called the gate is held, so that no
try is burnt: `loading` until the first of them serves, `no_backend` until the earliest may be tried again.
The task that then starts is the probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schemas.failures import FAILURE_FACTS, FailureKind
from schemas.fleet_messages import BackendState
from schemas.messages import Failure, RunTask
from services.core.backend_metrics import ServerLoad
from services.core.balance import Predicted, Preference, affinity_key, pick
from services.core.breaker import outcome_of
from services.core.fleet import Pool
from services.core.slot_limit import Answered
from services.core.work_size import USUAL_OUTPUT_TOKENS
from services.ports import Presence, RandomUnit
from services.worker_pools.backend_record import BackendRecord, Lease
from services.worker_pools.gate import Gate, Reason
from services.worker_pools.slot_budget import SlotBudget

_BACK_PRESSURE = frozenset({FailureKind.RATE_LIMITED, FailureKind.OVERLOADED})
_SUSPECT = frozenset(  # of a backend that may be gone, or may load its model again
    {FailureKind.UNREACHABLE, FailureKind.RESET, FailureKind.INTERRUPTED, FailureKind.OVERLOADED}
)
_USUAL_WEIGHT = 0.05  # of the newest answer in the usual length
_LEAST_TIMER_S = 0.001


@dataclass(frozen=True, slots=True)
class NoBackend:
    """None may be called now; `until_s`: from when one may, inf where nobody knows."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What a try heard of its backend: seconds to its first content and from there to the last, chunks with
    content, tokens of output."""

    anything: bool = False
    first_s: float | None = None
    decode_s: float = 0.0
    pieces: int = 0
    tokens: int = 0


class Backends:
    """Times are seconds on `steady_s`. `watched`: somebody asks the backends whether they serve, and says so
    by `present`; until then none is called. Unwatched ones are there."""

    def __init__(
        self,
        pool: Pool,
        uniform: RandomUnit,
        gate: Gate,
        steady_s: Callable[[], float],
        *,
        watched: bool = False,
    ) -> None:
        self._uniform = uniform
        self._law = pool.breaker
        self._gate = gate
        self._steady_s = steady_s
        self._usual_output = float(USUAL_OUTPUT_TOKENS)
        self._timer: asyncio.TimerHandle | None = None
        self._served = not watched
        self._holding = watched
        self._records = {
            url: BackendRecord(url, pool.breaker, there=not watched) for url in pool.base_urls or ("",)
        }
        self.on_suspect: Callable[[str], None] = lambda _: None
        self.budget: SlotBudget | None = None  # hears of every end, and says where there is room
        if watched:
            gate.hold("loading")

    def take(self, task: RunTask, body: Mapping[str, Any], failed_at: str | None) -> Lease | NoBackend:
        """A lease of the backend to call. `failed_at`: who just failed this task, avoided if another can."""
        now_s = self._steady_s()
        able = [record for record in self._records.values() if record.callable_from_s() <= now_s]
        if not able:
            self._refresh()
            return NoBackend(self.callable_at_s())
        predicted = self._predicted(task)
        record = able[0]
        if len(able) > 1:
            able = self._with_room(able)
            usual = Predicted(predicted.input_tokens, self._usual_output).work
            key = affinity_key(task.session_id, body)
            wish = Preference(key, task.affinity, usual, failed_at)
            chosen = pick([each.candidate(now_s, usual) for each in able], wish, self._uniform)
            record = self._records[chosen]
        lease = record.begin(predicted, now_s)
        if lease.probes:
            self._refresh()
        return lease

    def began(self, lease: Lease) -> None:
        """The call is made now."""
        lease.began_s = self._steady_s()

    def proved(self, lease: Lease) -> None:
        """The probe says something. One that goes on for as long as a first cool-down has shown enough: an
        answer of half an hour must not keep the others out. From then on it is a try like any other."""
        record, now_s = self._records[lease.base_url], self._steady_s()
        if now_s - lease.began_s >= self._law.cooldown_s:
            record.breaker.end(lease.passed, "good", now_s)
            lease.passed = record.breaker.begin(now_s)
            self._refresh()

    def ended(self, lease: Lease, failure: Failure | None, heard: Heard) -> None:
        """The try is over. `failure` as the backend gave it, before it is renamed for the caller."""
        record = self._records[lease.base_url]
        now_s = self._steady_s()
        if not record.give_back(lease):
            return
        self._learn(record, lease, failure, heard, now_s)
        if self.budget is not None:
            latency_s = now_s - lease.began_s if heard.first_s is None else heard.first_s
            size, work = lease.predicted.input_tokens, float(heard.tokens or 1)
            ended = Answered(lease.began_s, lease.in_flight, latency_s, size, work)
            self.budget.ended(lease.base_url, now_s, failure, ended, heard=heard.first_s is not None)
        kind = None if failure is None else failure.kind
        record.breaker.end(lease.passed, outcome_of(kind, heard=heard.anything), now_s)
        if failure is not None or lease.probes or self._holding:
            self._refresh()  # else one more good end, which changes nothing
        if kind in _SUSPECT and record.presence == "ready":
            self.on_suspect(lease.base_url)

    def dropped(self, lease: Lease) -> None:
        """Whatever happened, the lease is over; one that ended already is left alone."""
        record = self._records[lease.base_url]
        if record.give_back(lease):
            record.breaker.end(lease.passed, "nothing", self._steady_s())
            self._refresh()

    def present(self, base_url: str, presence: Presence) -> None:
        """Somebody asked it."""
        self._records[base_url].presence = presence
        self._served = self._served or presence == "ready"
        self._refresh()

    def told(self, base_url: str, load: ServerLoad | None) -> None:
        """Its own metrics, read just now; None: it says nothing any more."""
        self._records[base_url].told(load, self._steady_s())

    def urls(self) -> tuple[str, ...]:
        return tuple(self._records)

    def presence(self, base_url: str) -> Presence | None:
        return self._records[base_url].presence

    def callable_at_s(self) -> float:
        """From when one may be called: the past where one may now, inf where nobody knows."""
        return min(record.callable_from_s() for record in self._records.values())

    def callable_in_s(self) -> float:
        """Seconds until one may be called: 0 where one may now, inf where nobody knows."""
        return max(0.0, self.callable_at_s() - self._steady_s())

    def blamed(self, failure: Failure | None) -> bool:
        """Whether the same task had better be tried elsewhere."""
        if failure is None:
            return False
        kind = failure.kind
        return FAILURE_FACTS[kind].counts_against_backend or kind in _BACK_PRESSURE

    def another_serves(self, base_url: str) -> bool:
        """Whether a task that failed there can be tried elsewhere now."""
        now_s = self._steady_s()
        records = self._records.items()
        return any(url != base_url and record.callable_from_s() <= now_s for url, record in records)

    def states(self) -> tuple[BackendState, ...]:
        """For heartbeats and metrics, in the order of the fleet file."""
        now_s = self._steady_s()
        return tuple(record.state(now_s) for record in self._records.values())

    def loads(self) -> tuple[ServerLoad, ...]:
        """What their own metrics said last; empty where they say nothing, or too long ago."""
        now_s = self._steady_s()
        return tuple(record.load(now_s) or ServerLoad() for record in self._records.values())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _with_room(self, able: list[BackendRecord]) -> list[BackendRecord]:
        """Those below their own limit, or all where none is: the pool's slots say how many there are."""
        budget = self.budget
        if budget is None:
            return able
        return [each for each in able if budget.has_room(each.base_url, each.in_flight)] or able

    def _predicted(self, task: RunTask) -> Predicted:
        limit = task.output_tokens
        expected = self._usual_output if limit is None else min(float(limit), self._usual_output)
        return Predicted(task.input_tokens, expected)

    def _learn(
        self, record: BackendRecord, lease: Lease, failure: Failure | None, heard: Heard, now_s: float
    ) -> None:
        if failure is not None and failure.kind in _BACK_PRESSURE:
            record.pressure.refused(lease.began_s, now_s, failure.retry_after_s)
        elif failure is None:
            record.pressure.answered()
            if heard.tokens:
                self._usual_output += _USUAL_WEIGHT * (heard.tokens - self._usual_output)
        if heard.first_s is not None:
            record.health.answered(now_s, heard.first_s, heard.decode_s, heard.pieces)
        elif failure is not None and not heard.anything:
            record.health.waited(now_s, now_s - lease.began_s)

    def _refresh(self) -> None:
        """The gate as the backends are now, and a timer for when that changes by itself."""
        self.close()
        wait_s = self.callable_in_s()
        self._holding = wait_s > 0
        if wait_s <= 0:
            self._gate.release("loading")
            self._gate.release("no_backend")
            return
        held, other = self._reasons()
        self._gate.hold(held)
        self._gate.release(other)
        if wait_s < float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_LEAST_TIMER_S, wait_s), self._refresh)

    def _reasons(self) -> tuple[Reason, Reason]:
        """What holds the gate while none may be called, and what does not."""
        loading = any(record.presence == "loading" for record in self._records.values())
        if loading or not self._served:
            return "loading", "no_backend"
        return "no_backend", "loading"
