"""Which chunks of a task reach its streaming client, and how its stream ends. Never two attempts spliced.

Law (LIFECYCLE, "A stream"): bound to the attempt of its first delivered content, repaired only from that
attempt's terminal record, ended as interrupted when another attempt decides after content. When another one
starts after content, or its worker is dead, the log is asked: a close is written, and whichever terminal
record is first there ends the stream. Before content another attempt takes over unseen: frames without
content are held until there is some.

Chunks and records come from two topics, so a record of an attempt may be read after a later attempt's
content; only what stands behind the bound attempt's own start in `results` speaks against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.messages import Failure, ReplyChunk, TaskClosed, TaskFailed, TaskSucceeded
from services.core.assembly import MalformedChunkError, has_content
from services.core.life.table import CLOSE_FAILURES
from services.core.stream_rebuild import Sent, remaining_events, usage_event

Event = dict[str, Any]
Terminal = TaskSucceeded | TaskFailed | TaskClosed
_MOST_HELD = 4096  # chunks behind a gap; what is dropped beyond them comes from the terminal record

INTERRUPTED = CLOSE_FAILURES["interrupted"]


@dataclass(frozen=True, slots=True)
class Completed:
    """The stream is whole."""

    record: TaskSucceeded


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream ends with an error; `close`: no outcome stands, so the owner must write TaskClosed."""

    failure: Failure
    close: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What to deliver now. `missing`: the outcome is known, chunks are not: wait for them, then `repair`.
    `doubt`: nobody may end the bound attempt any more, so the owner writes TaskClosed and the log decides."""

    events: list[Event] = field(default_factory=list)
    end: Completed | Broken | None = None
    missing: bool = False
    doubt: bool = False


NOTHING = Step()


class _Track:
    """Chunks of one attempt, put in order."""

    __slots__ = ("content", "held", "next_seq", "ready")

    def __init__(self) -> None:
        self.next_seq = 0
        self.held: dict[int, list[Event]] = {}
        self.ready: list[Event] = []
        self.content = False

    def add(self, seq: int, events: list[Event]) -> None:
        if seq < self.next_seq or len(self.held) >= _MOST_HELD:
            return
        self.held[seq] = events
        while (following := self.held.pop(self.next_seq, None)) is not None:
            self.ready += following
            self.next_seq += 1

    def take(self) -> list[Event]:
        ready, self.ready = self.ready, []
        return ready


class StreamBinding:
    """The state of one stream. After an end every call returns NOTHING."""

    __slots__ = (
        "_bound",
        "_delivered",
        "_doubted",
        "_ended",
        "_outcome",
        "_over",
        "_sent",
        "_started",
        "_tracks",
        "_usage",
    )

    def __init__(self, *, include_usage: bool) -> None:
        self._usage = include_usage
        self._tracks: dict[str, _Track] = {}
        self._started: list[str] = []
        self._over: set[str] = set()
        self._bound: str | None = None
        self._delivered = False
        self._doubted = False
        self._outcome: TaskSucceeded | TaskFailed | None = None
        self._sent = Sent()
        self._ended = False

    @property
    def attempt(self) -> str | None:
        """The attempt that the stream follows, once there is one."""
        return self._bound

    @property
    def delivered(self) -> bool:
        """Whether anything has been handed out."""
        return self._delivered

    def chunk(self, record: ReplyChunk) -> Step:
        if self._ended or self._bound not in (None, record.attempt) or record.attempt in self._over:
            return NOTHING
        track = self._tracks.get(record.attempt)
        if track is None:
            track = self._tracks[record.attempt] = _Track()
        track.add(record.seq, record.events)
        if self._bound is None and not self._binds(record.attempt, track):
            return NOTHING
        self._bind(record.attempt)
        events = self._deliver(track.take())
        return Step(events) if self._outcome is None else self._concluded(events, self._outcome)

    def started(self, attempt: str) -> Step:
        """AttemptStarted, in the order of `results`."""
        if attempt not in self._started:
            self._started.append(attempt)
        return self._follow_starts()

    def attempt_failed(self, attempt: str) -> Step:
        """AttemptFailed: a try that is over delivers no more; after content nothing may follow it."""
        if self._ended or self._outcome is not None:
            return NOTHING
        if attempt == self._bound:
            return self._break(Broken(INTERRUPTED, close=True))
        self._tracks.pop(attempt, None)
        self._over.add(attempt)
        return NOTHING

    def worker_died(self) -> Step:
        """The worker of the bound attempt is dead, or seems so: what it wrote before may not be read yet."""
        if self._ended or self._outcome is not None or self._bound is None:
            return NOTHING
        return self._doubt()

    def outcome(self, record: Terminal) -> Step:
        """The first terminal record; later ones change nothing."""
        if self._ended or self._outcome is not None:
            return NOTHING
        if isinstance(record, TaskClosed):
            return self._break(Broken(CLOSE_FAILURES[record.reason]))
        if isinstance(record, TaskFailed) and (self._bound is None or record.run is None):
            return self._break(Broken(record.failure))
        attempt = record.run.attempt if record.run is not None else ""  # a success always has one
        if self._bound not in (None, attempt):
            return self._break(Broken(INTERRUPTED))
        self._outcome = record
        self._bind(attempt)
        return self._concluded(self._deliver(self._tracks[attempt].take()), record)

    def repair(self, answer: Mapping[str, Any] | None) -> Step:
        """Ends a stream whose chunks stayed missing, from the outcome's whole `answer` (None: none)."""
        outcome = self._outcome
        if self._ended or outcome is None:
            return NOTHING
        events = remaining_events(answer, self._sent) if answer is not None else []
        self._delivered = self._delivered or bool(events)
        return self._finished(events, outcome)

    def usage(self, answer: Mapping[str, Any], usage: Mapping[str, Any]) -> list[Event]:
        """The usage chunk, where the client asked for it and none has been sent."""
        if not self._usage or self._sent.usage:
            return []
        return [usage_event(answer, usage, self._sent)]

    def _binds(self, attempt: str, track: _Track) -> bool:
        """Content, and no later attempt has started: frames without content are held."""
        if not track.content and any(map(_carries_content, track.ready)):
            track.content = True
        superseded = attempt in self._started and self._started[-1] != attempt
        return track.content and not superseded

    def _bind(self, attempt: str) -> None:
        if self._bound is None:
            self._bound = attempt
            self._tracks = {attempt: self._tracks.get(attempt) or _Track()}

    def _follow_starts(self) -> Step:
        if self._ended or self._outcome is not None or self._bound not in self._started:
            return self._rebind()
        return self._doubt() if self._started[-1] != self._bound else NOTHING

    def _doubt(self) -> Step:
        """Said once."""
        said, self._doubted = self._doubted, True
        return NOTHING if said else Step(doubt=True)

    def _rebind(self) -> Step:
        """The newest attempt may have content that came before its start was read."""
        newest = self._started[-1]
        track = self._tracks.get(newest)
        if self._ended or self._bound is not None or track is None or not self._binds(newest, track):
            return NOTHING
        self._bind(newest)
        return Step(self._deliver(track.take()))

    def _deliver(self, events: list[Event]) -> list[Event]:
        if not self._usage:
            events = [event for event in map(_without_usage, events) if event is not None]
        for event in events:
            self._sent.add(event)
        self._delivered = self._delivered or bool(events)
        return events

    def _concluded(self, events: list[Event], outcome: TaskSucceeded | TaskFailed) -> Step:
        """After the outcome: the end if every chunk has come, else wait for the rest."""
        received = self._tracks[self._bound].next_seq if self._bound is not None else 0
        if received < outcome.chunks or (received == 0 and isinstance(outcome, TaskSucceeded)):
            return Step(events, missing=True)
        return self._finished(events, outcome)

    def _finished(self, events: list[Event], outcome: TaskSucceeded | TaskFailed) -> Step:
        self._ended = True
        if isinstance(outcome, TaskSucceeded):
            return Step(events, Completed(outcome))
        return Step(events, Broken(outcome.failure))

    def _break(self, end: Broken) -> Step:
        self._ended = True
        return Step([], end)


def closed_failure(record: TaskClosed) -> Failure:
    """What a close means to the caller."""
    return CLOSE_FAILURES[record.reason]


def _carries_content(event: Event) -> bool:
    try:
        return has_content(event)
    except MalformedChunkError:
        return False


def _without_usage(event: Event) -> Event | None:
    """The event as a client sees it that did not ask for usage; None where there was nothing else in it."""
    if "usage" not in event:
        return event
    if not event.get("choices"):
        return None
    return {name: value for name, value in event.items() if name != "usage"}
