"""When a backend is left alone: a circuit breaker as a table of states.

Law: only ends of tries move it. An end counts once, when the try is over (a stream's fault at the stream's
end), and only if it began in the state that still stands: what was under way when the breaker opened neither
closes it nor keeps it open. In `half_open` one try runs, the probe. Cool-downs only grow while it fails: they
double with each failed probe, and go on from where they were if it trips again within a window of its
closing. An illegal event raises and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from schemas.failures import FAILURE_FACTS, FailureKind
from services.core.fleet import BreakerLaw

State = Literal["closed", "open", "half_open"]
Event = Literal["tripped", "probe_began", "probe_good", "probe_fault", "probe_freed"]
Outcome = Literal["good", "fault", "unproven", "nothing"]
"""unproven: its deadline came and the backend had said nothing; nothing: it says nothing of the backend."""

TABLE: Mapping[tuple[State, Event], State] = {
    ("closed", "tripped"): "open",
    ("open", "probe_began"): "half_open",
    ("half_open", "probe_good"): "closed",
    ("half_open", "probe_fault"): "open",
    ("half_open", "probe_freed"): "open",
}
_BUCKETS = 10


class BreakerError(Exception):
    """An event that the state does not allow."""


def outcome_of(kind: FailureKind | None, *, heard: bool) -> Outcome:
    """What the end of a try says of its backend; None is a success."""
    if kind is None:
        return "good"
    if FAILURE_FACTS[kind].counts_against_backend:
        return "fault"
    return "unproven" if kind is FailureKind.DEADLINE and not heard else "nothing"


@dataclass(frozen=True, slots=True)
class Pass:
    """Leave to call the backend, given back at the end of the try. `era`: which state it began in."""

    era: int
    probe: bool


class Breaker:
    """Of one backend. Times are seconds on the caller's clock, which never goes back."""

    __slots__ = ("_closed_s", "_cooldown_s", "_era", "_law", "_open_until_s", "_state", "_window")

    def __init__(self, law: BreakerLaw) -> None:
        self._law = law
        self._window = _Window(law.window_s)
        self._state: State = "closed"
        self._era = 0
        self._open_until_s = 0.0
        self._cooldown_s = 0.0  # the last one
        self._closed_s = float("-inf")

    @property
    def state(self) -> State:
        return self._state

    @property
    def cooldown_s(self) -> float:
        """The length of the last cool-down; 0 where there was none."""
        return self._cooldown_s

    def callable_at_s(self) -> float | None:
        """From when a try may begin: 0 where it may now; None while the probe runs."""
        if self._state == "closed":
            return 0.0
        return self._open_until_s if self._state == "open" else None

    def begin(self, now_s: float) -> Pass:
        """A try begins; past the cool-down it is the probe. Raises BreakerError where none may."""
        if self._state == "closed":
            return Pass(self._era, probe=False)
        if self._state == "open" and now_s < self._open_until_s:
            raise BreakerError(f"open for another {self._open_until_s - now_s:.3f} s")
        self._move("probe_began")
        return Pass(self._era, probe=True)

    def end(self, passed: Pass, outcome: Outcome, now_s: float) -> None:
        """The try is over. An end from an earlier state, or a second one of a probe, changes nothing."""
        if passed.era != self._era:
            return
        if passed.probe:
            self._probed(outcome, now_s)
        elif outcome in ("good", "fault"):
            self._window.add(now_s, fault=outcome == "fault")
            if outcome == "fault" and self._is_too_much(now_s):
                again = now_s - self._closed_s < self._law.window_s
                self._open("tripped", self._grown_s() if again else self._law.cooldown_s, now_s)

    def _probed(self, outcome: Outcome, now_s: float) -> None:
        if outcome == "good":
            self._move("probe_good")
            self._window = _Window(self._law.window_s)
            self._closed_s = now_s
        elif outcome == "fault":
            self._open("probe_fault", self._grown_s(), now_s)
        else:  # the next try is the probe; where this one waited in vain, after the same time again
            self._move("probe_freed")
            self._open_until_s = now_s + (self._cooldown_s if outcome == "unproven" else 0.0)

    def _is_too_much(self, now_s: float) -> bool:
        calls, faults = self._window.counts(now_s)
        return calls >= self._law.min_calls and faults >= calls * self._law.failure_rate

    def _grown_s(self) -> float:
        return max(self._law.cooldown_s, min(2 * self._cooldown_s, self._law.cooldown_most_s))

    def _open(self, event: Event, cooldown_s: float, now_s: float) -> None:
        self._move(event)
        self._cooldown_s = cooldown_s
        self._open_until_s = now_s + cooldown_s

    def _move(self, event: Event) -> None:
        following = TABLE.get((self._state, event))
        if following is None:
            raise BreakerError(f"{event} in state {self._state}")
        self._state = following
        self._era += 1


class _Window:
    """Calls and faults of the last `span_s`, in tenths of it: bounded, whatever the rate."""

    __slots__ = ("_buckets", "_span_s")

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._buckets: deque[list[float]] = deque()  # [begins at, calls, faults]

    def add(self, now_s: float, *, fault: bool) -> None:
        self._drop(now_s)
        if not self._buckets or now_s - self._buckets[-1][0] >= self._span_s / _BUCKETS:
            self._buckets.append([now_s, 0, 0])
        self._buckets[-1][1] += 1
        self._buckets[-1][2] += fault

    def counts(self, now_s: float) -> tuple[int, int]:
        self._drop(now_s)
        return int(sum(b[1] for b in self._buckets)), int(sum(b[2] for b in self._buckets))

    def _drop(self, now_s: float) -> None:
        while self._buckets and now_s - self._buckets[0][0] >= self._span_s:
            self._buckets.popleft()
