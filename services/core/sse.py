"""Server-Sent Events, decoded from bytes as they come (WHATWG HTML, 9.2.6: "Interpreting an event stream").

Bytes are never decoded before their line is whole, so a split within a character harms nothing. A line that
ends in CR is complete at the CR: an LF that follows, in this chunk or the next, belongs to it.
"""

from typing import NamedTuple

MIB = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_DEFAULT_NAME = "message"


class Event(NamedTuple):
    """`name` is the event field or "message"; `data` the data lines, joined by LF."""

    name: str
    data: bytes


class EventTooLargeError(ValueError):
    """An event outgrew the decoder's bound; the stream can't be followed any further."""


class SseDecoder:
    """Feed it chunks, it returns the events they complete. Comments, ids and retry fields are dropped."""

    __slots__ = ("_at_start", "_data", "_held_bytes", "_max_bytes", "_name", "_skip_lf", "_tail")

    def __init__(self, max_event_bytes: int = 16 * MIB) -> None:
        self._max_bytes = max_event_bytes
        self._tail: list[bytes] = []  # pieces of the line that is not whole yet
        self._data: list[bytes] = []
        self._name = ""
        self._held_bytes = 0  # tail, data lines and fields of the event that is not whole yet
        self._skip_lf = False
        self._at_start = True

    @property
    def pending(self) -> bool:
        """Whether an event has begun that is not whole."""
        return bool(self._tail or self._data or self._name)

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises EventTooLargeError when one exceeds the bound."""
        if not data:
            return []
        if self._skip_lf:
            self._skip_lf = False
            if data[0] == 0x0A:
                data = data[1:]
        return self._by_line(data)

    def finish(self) -> list[Event]:
        """The stream has ended: the last event, of a server that left out the final blank line.

        Its data may be cut short; a caller that cannot decode it has a broken stream.
        """
        events = self._by_line(b"\n\n") if self.pending else []
        self._skip_lf = False
        return events

    def _by_line(self, data: bytes) -> list[Event]:
        events = []
        for line in data.splitlines(keepends=True):
            end = line[-1]
            self._skip_lf = end == 0x0D  # only the chunk's last line leaves it set
            if end not in (0x0A, 0x0D):
                self._tail.append(line)
                self._hold(len(line))
                break
            event = self._line(line.rstrip(b"\r\n"))
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: bytes) -> Event | None:
        if self._tail:
            line = b"".join((*self._tail, line))
            self._held_bytes -= sum(map(len, self._tail))
            self._tail.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        if line[0] == 0x3A:  # a comment
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._hold(len(value) + 1)
            self._data.append(value)
        elif field == b"event":
            self._hold(len(value) + 1)
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name or _DEFAULT_NAME, b"\n".join(self._data)) if self._data else None
        self._data.clear()
        self._name = ""
        self._held_bytes = 0
        return event

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        if self._held_bytes > self._max_bytes:
            raise EventTooLargeError(f"an event exceeds {self._max_bytes} bytes")
