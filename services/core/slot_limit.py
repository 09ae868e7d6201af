"""How many tries at once are good for one backend: an adaptive limit with hard bounds. Pure.

The limit starts at its upper bound and leaves it only for a reason.

- Refusals (429, 503, 529) cut it by a factor (additive increase, multiplicative decrease: Chiu and Jain,
  1989), once for each round trip: a try that began before the last cut says nothing new.
- Latency cuts it only where a standing queue shows: nearly all tries of a window took far longer to their
  first token than such tries usually do. One number for all tries would take long prompts and long answers
  for congestion: so a try is compared with what is usual for its own size (in powers of four), and it is the
  luckiest tries of a window that speak (as the minimum in CoDel: Nichols and Jacobson, 2012): a queue lets
  nobody through quickly, a heavy tail does.
- A cut is on trial, and goes back where it did no good. If tries are as slow as before it is not our doing:
  their latency is the usual one now. If throughput fell with the limit, every slot had been at work: lateness
  is not believed until the limit has grown by half, or for a number of windows.
- It grows by one for each window, only while it is used.

Long-run against short-run latency, the growth only while used and the cut of at most a half in one step are
those of Gradient2 (Netflix concurrency-limits). Its baseline is an average of everything, which follows a
queue that stays until the queue counts as usual; ours learns only while nothing is late. Its allowance of
sqrt(limit) queued tries is here an allowance of time, `tolerance` and `grace_s`: what waits at a model server
is worth a slot by the seconds that it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SIZE_STEP = 4.0  # sizes of one class are within this factor
_MOST_SAMPLES = 512  # of a window: more say nothing more


@dataclass(frozen=True, slots=True)
class LimitLaw:
    """A try is late above `tolerance` times the usual latency and `grace_s`; a window is late where at least
    1 - `lucky` of its tries are. Windows have at least `window_tries` tries, those that decide `trial_tries`,
    and last `window_s`."""

    tolerance: float = 2.0
    grace_s: float = 0.25
    lucky: float = 0.2
    window_tries: int = 16
    trial_tries: int = 64
    window_s: float = 0.5
    late_cut: float = 0.7
    refused_cut: float = 0.7
    trusted_windows: int = 32
    trusted_growth: float = 1.5


@dataclass(frozen=True, slots=True)
class Answered:
    """A try that was answered, or that gave up waiting for it.

    latency_s: to the first token, or to the end where nothing is streamed; in_flight: at this backend when it
    began, itself included; size: of what was sent, in any unit; work: what it produced, in any unit.
    """

    started_s: float
    in_flight: int
    latency_s: float
    size: float
    work: float


@dataclass(frozen=True, slots=True)
class _Before:
    """The last window before a cut."""

    limit: float
    excess_s: float
    rate: float
    slower: float  # how many times the usual latency the luckiest took


class _Window:
    """Tries that ended since it was opened, of those that began under this limit."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float, float]] = []  # size class, latency, usual latency
        self.late = 0
        self.peak = 0
        self.used = 0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._work = 0.0

    def add(self, size: int, latency_s: float, usual_s: float, *, late: bool) -> None:
        if len(self.samples) < _MOST_SAMPLES:
            self.samples.append((size, latency_s, usual_s))
            self.late += late

    def progressed(self, now_s: float, work: float) -> None:
        """Work was done, by whatever try: what ended first only starts the clock."""
        if self._first_s is None:
            self._first_s = self._last_s = now_s
            return
        self._last_s = now_s
        self._work += work

    @property
    def began(self) -> bool:
        return self._first_s is not None

    @property
    def span_s(self) -> float:
        return 0.0 if self._first_s is None else self._last_s - self._first_s

    @property
    def rate(self) -> float:
        return self._work / self.span_s if self.span_s > 0 else 0.0

    def excess_s(self, lucky: float) -> float:
        """By how much the luckiest tries were slower than usual."""
        return _lucky([latency_s - usual_s for _, latency_s, usual_s in self.samples], lucky)

    def slower(self, lucky: float) -> float:
        return _lucky([latency_s / max(usual_s, 1e-6) for _, latency_s, usual_s in self.samples], lucky)


def _lucky(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * len(values))] if values else 0.0


class UsualLatency:
    """What a try of each size usually takes when nothing queues: a low expectile (Newey and Powell, 1987).

    A latency below it pulls it down ten times as hard as one above pulls it up. What is usual for a size not
    seen yet is bounded by its neighbours': a longer prompt takes longer, at most in proportion.
    """

    _DOWN, _UP = 0.3, 0.03

    def __init__(self) -> None:
        self._of: dict[int, float] = {}

    def of(self, size: int, latency_s: float) -> float:
        """Seconds; of a size that no neighbour bounds, the first try stands for the usual one."""
        usual_s = self._of.get(size)
        if usual_s is None:
            usual_s = self._of[size] = min([latency_s, *self._bounds(size)])
        return usual_s

    def learn(self, size: int, latency_s: float, *, late: bool) -> None:
        usual_s = self._of[size]
        if latency_s < usual_s:
            self._of[size] = usual_s + self._DOWN * (latency_s - usual_s)
        elif not late:
            self._of[size] = usual_s + self._UP * min(latency_s - usual_s, usual_s)

    def scale(self, factor: float) -> None:
        self._of = {size: usual_s * factor for size, usual_s in self._of.items()}

    def _bounds(self, size: int) -> list[float]:
        return [usual_s * max(1.0, _SIZE_STEP ** (size - other)) for other, usual_s in self._of.items()]


class SlotLimit:
    """Between `least` and `most`, both at least 1. Times are seconds on one steady clock."""

    def __init__(self, least: int, most: int, law: LimitLaw = LimitLaw()) -> None:
        self._least, self._most = least, most
        self._law = law
        self._limit = float(most)
        self._peak = 0  # tries at once in the last window
        self._cut_s = float("-inf")
        self._late_windows = 0
        self._trusted = 0  # windows for which every slot is known to be at work, up to `_trusted_to`
        self._trusted_to = 0.0
        self._before: _Before | None = None
        self._usual = UsualLatency()
        self._window = _Window()

    @property
    def limit(self) -> int:
        return int(self._limit)

    def refused(self, now_s: float, started_s: float, in_flight: int) -> None:
        """The backend said 429, 503 or 529 to a try."""
        if started_s < self._cut_s:
            return
        self._before, self._late_windows = None, 0
        # Halved at most: a refusal of one of few says little of how many would be too many.
        least_peak = self._limit / 2 / self._law.refused_cut
        peak = max(in_flight, self._peak, self._window.peak, least_peak)
        self._cut(now_s, peak, self._law.refused_cut)

    def answered(self, now_s: float, end: Answered) -> None:
        window, law = self._window, self._law
        if end.started_s < self._cut_s:
            if window.began:
                window.progressed(now_s, end.work)
            return
        size = int(end.size).bit_length() // 2
        usual_s = self._usual.of(size, end.latency_s)
        window.add(size, end.latency_s, usual_s, late=self._is_late(end.latency_s, usual_s))
        window.progressed(now_s, end.work)
        window.peak = max(window.peak, end.in_flight)
        window.used += end.in_flight >= self.limit
        decides = self._before is not None or self._late_windows > 0
        need = max(law.trial_tries if decides else law.window_tries, self._limit)
        if len(window.samples) >= min(need, _MOST_SAMPLES) and window.span_s >= law.window_s:
            self._close(now_s)

    def _is_late(self, latency_s: float, usual_s: float) -> bool:
        return latency_s > self._law.tolerance * usual_s + self._law.grace_s

    def _close(self, now_s: float) -> None:
        window, self._window = self._window, _Window()
        late = window.late >= (1 - self._law.lucky) * len(window.samples)
        for size, latency_s, usual_s in window.samples:
            self._usual.learn(size, latency_s, late=late or self._is_late(latency_s, usual_s))
        self._peak = window.peak
        self._trusted = max(0, self._trusted - 1)
        used = 2 * window.used >= len(window.samples)
        if self._before is not None:
            self._judge(now_s, window, self._before, late=late, used=used)
        elif late and not (self._trusted and self._limit < self._trusted_to):
            self._late_windows += 1
            if self._late_windows > 1:
                self._try_less(now_s, window)
        else:
            self._late_windows = 0
            self._grow(used)

    def _judge(self, now_s: float, window: _Window, before: _Before, *, late: bool, used: bool) -> None:
        """A trial is over: with fewer tries at once, is less done, and are they quicker?"""
        self._before, self._late_windows = None, 0
        if not used:
            return  # there was less to do: that says nothing
        less = 1 - self._limit / before.limit
        worked = window.rate < before.rate * (1 - less / 2)
        as_slow = late and window.excess_s(self._law.lucky) > before.excess_s * (1 - less / 2)
        if worked:
            self._limit = before.limit
            self._trusted = self._law.trusted_windows
            self._trusted_to = before.limit * self._law.trusted_growth
        elif as_slow:
            self._limit = before.limit
            self._usual.scale(max(1.0, before.slower))
        elif late:
            self._try_less(now_s, window)

    def _try_less(self, now_s: float, window: _Window) -> None:
        lucky = self._law.lucky
        limit = min(self._limit, float(window.peak))
        before = _Before(limit, window.excess_s(lucky), window.rate, window.slower(lucky))
        self._late_windows = 0
        if self._cut(now_s, window.peak, self._law.late_cut):
            self._before = before

    def _grow(self, used: bool) -> None:
        if used:
            self._limit = min(float(self._most), self._limit + 1)

    def _cut(self, now_s: float, peak: float, factor: float) -> bool:
        """From what was really in flight: above that the limit limited nothing."""
        limit = max(float(self._least), min(self._limit, peak) * factor)
        self._cut_s, self._window = now_s, _Window()
        if limit >= self._limit:
            return False
        self._limit = limit
        return True
