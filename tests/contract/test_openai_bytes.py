"""A recorded stream cut into pieces at any bytes is the same stream; unit tests of its normal form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.adapters.model_backends.answer_bytes import SseAnswer, begun, is_sse
from services.core.answer_choice import MalformedChunkError
from services.core.assembly import Assembly
from services.core.backend_errors import Waits
from services.core.chunk_form import ChunkForm
from tests.contract.client_view import CALLS, DIALECTS, TEXT, recorded


def assembled(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    form, assembly = ChunkForm("chat", "t", {}), Assembly("chat", "t", "m")
    for event in events:
        assembly.add(form.normal(event))
    choice: dict[str, Any] = assembly.answer()["choices"][0]
    return choice


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    return [body[left:right] for left, right in pairwise(edges) if left < right]


@settings(deadline=None, max_examples=150)
@given(
    dialect=st.sampled_from(DIALECTS),
    kind=st.sampled_from(["text", "tools"]),
    newline=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(min_value=0, max_value=5000), max_size=40),
)
async def test_s6_cut_anywhere_it_is_the_same_answer(
    dialect: str, kind: str, newline: bytes, cuts: list[int]
) -> None:
    body = recorded(dialect, kind).replace(b"\n", newline)

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces_of(body, cuts):
            yield piece

    pieces = arriving()
    first = await begun(pieces)
    assert is_sse("", first) is True
    answer = SseAnswer(())
    events = answer.feed(first)
    async for piece in pieces:
        events += answer.feed(piece)
    events += answer.finish()
    assert answer.fault is None
    choice = assembled(events)
    if kind == "text":
        assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT, "stop")
    else:
        calls = choice["message"]["tool_calls"]
        assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == CALLS


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b"data: {}", True),
        (b"\xef\xbb\xbfdata: {}", True),
        (b"\r\n\r\n: ping", True),
        (b'  {"id": 1}', False),
        (b"[]", False),
        (b"<html>", None),
        (b"", None),
    ],
)
async def test_what_an_answer_is_shows_in_its_first_bytes(body: bytes, stream: bool | None) -> None:
    async def arriving() -> AsyncIterator[bytes]:
        for at in range(len(body)):
            yield body[at : at + 1]

    first = await begun(arriving())
    assert is_sse("", first) is stream
    assert is_sse("text/event-stream", first) is (stream is not False)


@pytest.mark.parametrize("choices", ["x", [1], {"a": 1}, [{"index": []}], [{"index": "0"}]])
def test_choices_that_are_none_are_refused(choices: Any) -> None:
    with pytest.raises(MalformedChunkError):
        ChunkForm("chat", "t", {}).normal({"choices": choices})


def test_figures_are_for_who_asked() -> None:
    event = {"choices": [], "timings": {"a": 1}, "__verbose": {}}
    assert "timings" not in ChunkForm("chat", "t", {}).normal(dict(event))
    assert ChunkForm("chat", "t", {"timings_per_token": True}).normal(dict(event))["timings"] == {"a": 1}


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        (Waits("3", "250"), 0.25),
        (Waits("3", "soon"), 3.0),
        (Waits("3", None), 3.0),
        (Waits(None, "0"), 0.0),
        (Waits(None, "-1"), None),
        (Waits("soon", None), None),
    ],
)
def test_r2_milliseconds_are_believed_before_seconds(waits: Waits, seconds: float | None) -> None:
    assert waits.seconds(0.0) == seconds
