"""Recorded streams of the Messages API, cut anywhere, are the chunks of one OpenAI answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.adapters.model_backends.answer_bytes import SseAnswer
from services.core import usage
from services.core.anthropic_events import MalformedEventError, MessagesTranslator, usage_of, whole_answer
from services.core.assembly import Assembly
from services.core.chunk_form import ChunkForm

RECORDED = Path(__file__).parents[1] / "backends_like" / "recorded"
KINDS = ("text", "tools", "thinking")


def recorded(kind: str) -> bytes:
    return (RECORDED / f"messages.{kind}.sse").read_bytes()


def chunks_of(pieces: list[bytes]) -> list[dict[str, Any]]:
    answer, translator = SseAnswer(()), MessagesTranslator()
    found = [chunk for piece in pieces for chunk in translator.chunks(answer.feed(piece))]
    found += translator.chunks(answer.finish())
    assert answer.fault is None
    return found


def answer_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    assembly, form = Assembly("chat", "id", "m"), ChunkForm("chat", "t", {})
    for chunk in chunks:
        assembly.add(form.normal(chunk))
    assert assembly.finished
    return assembly.answer()


def test_text_is_joined_and_usage_is_what_both_ends_say() -> None:
    answer = answer_of(chunks_of([recorded("text")]))
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Héllo wörld 🙂"
    assert choice["finish_reason"] == "stop"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (25, 15)
    assert answer["usage"]["total_tokens"] == 40


def test_s7_parallel_calls_keep_their_order_ids_and_arguments() -> None:
    answer = answer_of(chunks_of([recorded("tools")]))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Okay, let me look."
    assert [
        (call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"]))
        for call in choice["message"]["tool_calls"]
    ] == [("toolu_01T1x1fJ34qAmk2tNTrN7Up6", "weather", {"city": "Zürich"}), ("toolu_02", "now", {})]


def test_s8_what_the_cache_gave_is_counted_once_and_as_cached() -> None:
    told = answer_of(chunks_of([recorded("tools")]))["usage"]
    counted = usage.counted(told, prompt_bytes=1, output_tokens=lambda: 1)
    assert (counted.input_tokens, counted.output_tokens, counted.cached_tokens) == (3210, 89, 3000)
    assert not counted.estimated


def test_s8_a_stream_that_breaks_has_counted_what_went_in() -> None:
    head = recorded("text").partition(b"event: content_block_stop")[0]
    assembly = Assembly("chat", "id", "m")
    for chunk in chunks_of([head]):
        assembly.add(chunk)
    assert not assembly.finished
    counted = usage.counted(assembly.usage, prompt_bytes=4_000, output_tokens=lambda: 3)
    assert (counted.input_tokens, counted.output_tokens, counted.estimated) == (25, 3, True)


def test_thoughts_are_apart_and_what_is_not_known_changes_nothing() -> None:
    (choice,) = answer_of(chunks_of([recorded("thinking")]))["choices"]
    assert choice["message"]["reasoning_content"] == "Let me think."
    assert choice["message"]["content"] == "42"
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"
    translator = MessagesTranslator()
    assert translator.chunks([{"type": "ping"}, {"type": "of_next_year", "index": 3}]) == []


@given(st.sampled_from(KINDS), st.data())
def test_s6_wherever_the_bytes_are_cut_the_answer_is_the_same(kind: str, data: st.DataObject) -> None:
    whole = recorded(kind)
    if data.draw(st.booleans()):
        whole = whole.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=40)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert answer_of(chunks_of(pieces)) == answer_of(chunks_of([whole]))


@given(st.sampled_from(KINDS), st.integers(0, 40))
def test_a_stream_without_its_beginning_never_passes_for_an_answer(kind: str, lost: int) -> None:
    events = recorded(kind).split(b"\n\n")
    rest = b"\n\n".join(events[lost:])
    try:
        chunks = chunks_of([rest])
    except MalformedEventError:
        return
    assert len(chunks) <= len(events)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "content_block_delta", "index": "0", "delta": {}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "content_block": {"type": "text"}},
        {"type": "message_start"},
        {"type": "message_delta", "delta": None},
    ],
)
def test_an_event_of_a_wrong_shape_is_malformed(event: dict[str, Any]) -> None:
    with pytest.raises(MalformedEventError):
        MessagesTranslator().chunks([event])


def test_a_whole_answer_says_what_its_stream_would() -> None:
    message = {
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "Okay."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
    answer = answer_of([whole_answer(message)])
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Okay."
    assert choice["message"]["reasoning_content"] == "Hm."
    (call,) = choice["message"]["tool_calls"]
    assert (call["id"], orjson.loads(call["function"]["arguments"])) == ("toolu_1", {"city": "Zürich"})
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["total_tokens"] == 12


@pytest.mark.parametrize(
    "odd", [{}, {"type": "message"}, {"type": "message", "content": "text"}, {"choices": []}]
)
def test_what_is_no_message_is_no_answer(odd: dict[str, Any]) -> None:
    with pytest.raises(MalformedEventError):
        whole_answer(odd)


def test_counts_that_are_odd_are_left_out() -> None:
    assert usage_of({"input_tokens": -1, "output_tokens": True}) == {}
    assert usage_of({"input_tokens": 0, "output_tokens": 0})["total_tokens"] == 0
