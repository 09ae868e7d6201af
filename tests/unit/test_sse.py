"""The event-stream decoder: the same events however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.sse import Event, EventTooLargeError, SseDecoder


def message(data: bytes) -> Event:
    return Event("message", data)


def decoded(chunks: list[bytes]) -> list[Event]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    assert not decoder.pending
    return events


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [message(b"a"), message(b"b")]),
        (b"data:a\n\n", [message(b"a")]),
        (b"data:  a\n\n", [message(b" a")]),
        (b"data: a\ndata: b\n\n", [message(b"a\nb")]),
        (b"data\n\n", [message(b"")]),
        (b"data:\ndata:\n\n", [message(b"\n")]),
        (b": ping\n\ndata: a\n: ping\n\n", [message(b"a")]),
        (b"event: delta\ndata: a\n\ndata: b\n\n", [Event("delta", b"a"), message(b"b")]),
        (b"event: empty\n\ndata: b\n\n", [message(b"b")]),
        (b"id: 7\nretry: 10\nother: x\ndata: a\n\n", [message(b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [message(b"a")]),
        (b"data: a: b\n\n", [message(b"a: b")]),
        (b"\n\n\ndata: a\n\n\n\n", [message(b"a")]),
        ("data: \u2028 naïve 🦊\n\n".encode(), [message("\u2028 naïve 🦊".encode())]),
        (b"data: \x0b\x0c\x1c\x85\n\n", [message(b"\x0b\x0c\x1c\x85")]),
    ],
)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_fields_and_line_endings(stream: bytes, events: list[Event], ending: bytes) -> None:
    ended = stream.replace(b"\n", ending)
    assert decoded([ended]) == events
    assert decoded([ended[place : place + 1] for place in range(len(ended))]) == events


LINES = st.lists(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12), min_size=1, max_size=3
)
NAMES = st.sampled_from(["message", "delta", "error"])
PLACES = st.lists(st.integers(0, 2_000), max_size=30)


@given(st.lists(st.tuples(NAMES, LINES, st.booleans()), max_size=8), PLACES, st.data())
def test_any_stream_cut_anywhere_gives_its_events(
    events: list[tuple[str, list[str], bool]], places: list[int], data: st.DataObject
) -> None:
    ending = st.sampled_from([b"\n", b"\r\n", b"\r"])
    stream = bytearray()
    for name, lines, ping in events:
        fields = [b": ping"] if ping else []
        if name != "message":
            fields.append(b"event: " + name.encode())
        fields += [b"data: " + line.encode() for line in lines]
        for line in (*fields, b""):
            last_cr = stream.endswith(b"\r")
            chosen = data.draw(ending)
            # A CR before a blank line's LF would be read as one ending: that is the format, not a fault.
            stream += line + (b"\r\n" if last_cr and not line and chosen == b"\n" else chosen)
    expected = [Event(name, "\n".join(lines).encode()) for name, lines, _ in events]
    assert decoded(cut(bytes(stream), places)) == expected


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_any_bytes_in_any_pieces_decode_alike(chunks: list[bytes]) -> None:
    pieces, whole = SseDecoder(), SseDecoder()
    events = [event for chunk in chunks for event in pieces.feed(chunk)] + pieces.finish()
    assert events == whole.feed(b"".join(chunks)) + whole.finish()


def test_an_event_is_given_at_once_even_when_it_ends_in_cr() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [message(b"a")]
    assert decoder.feed(b"\ndata: b\r\n\r\n") == [message(b"b")]


def test_a_cr_says_nothing_about_a_line_feed_after_other_text() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\r: pi") == [message(b"a")]
    assert decoder.feed(b"\nevent: delta\ndata: b\n\n") == [Event("delta", b"b")]


def test_the_end_of_a_stream_gives_an_event_without_its_blank_line() -> None:
    for rest in (b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r"):
        decoder = SseDecoder()
        assert decoder.feed(b"data: a\n\n" + rest) == [message(b"a")]
        assert decoder.pending
        assert decoder.finish() == [message(b"[DONE]")]
        assert decoder.finish() == []


def feed_often(decoder: SseDecoder, chunk: bytes) -> None:
    for _ in range(1_001):
        decoder.feed(chunk)


@pytest.mark.parametrize(
    "chunk", [b"data: aaaaaaa", b"data: a\n", b"data:\n", b"event: name\n", b": comment without end", b"x"]
)
def test_an_event_without_end_is_refused_within_the_bound(chunk: bytes) -> None:
    decoder = SseDecoder(max_event_bytes=1_000)
    decoder.feed(b"data: first\n\n")
    with pytest.raises(EventTooLargeError):
        feed_often(decoder, chunk)


def test_a_whole_event_beyond_the_bound_is_refused() -> None:
    decoder = SseDecoder(max_event_bytes=1_000)
    decoder.feed(b"data: first\n\n")
    with pytest.raises(EventTooLargeError):
        decoder.feed(b"data: " + bytes(1_001) + b"\n\n")


def test_the_bound_is_for_one_event_not_for_a_stream() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    for _ in range(50):
        assert decoder.feed(b"data: " + b"a" * 60 + b"\nda") == []
        assert decoder.feed(b"ta: b\n: a comment of some length\n\n") == [message(b"a" * 60 + b"\nb")]
