"""An answer rebuilt from its stream equals the answer that was not streamed."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.assembly import Assembly, MalformedChunkError, has_content

TEXT = st.text('aé漢🦊👩\u200d👧 \n"{', min_size=1, max_size=12)


def chunk_of(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "backend",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": list(choices),
        **fields,
    }


def delta_of(index: int = 0, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason}


def assembled(chunks: list[dict[str, Any]], n: int = 1) -> Assembly:
    assembly = Assembly("chat", "chatcmpl-1", "model-1", n)
    for chunk in chunks:
        assembly.add(chunk)
    return assembly


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": draw(TEXT), "arguments": draw(TEXT)}}
        for n in range(draw(st.integers(0, 3)))
    ]
    message: dict[str, Any] = {"role": "assistant", "content": draw(TEXT | st.none())}
    message |= {
        name: draw(TEXT) for name in draw(st.sets(st.sampled_from(["refusal", "reasoning_content", "x_new"])))
    }
    return message | ({"tool_calls": calls} if calls else {})


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    edges = [0, *sorted(draw(st.lists(st.integers(0, len(text)), max_size=4))), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def call_frames(draw: st.DrawFn, index: int, call: dict[str, Any]) -> list[dict[str, Any]]:
    head = {"index": index, "id": call["id"], "type": "function"}
    first = {"tool_calls": [{**head, "function": {"name": call["function"]["name"], "arguments": ""}}]}
    rest = pieces(draw, call["function"]["arguments"])
    return [first, *({"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in rest)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(choices of the whole answer, chunks of its stream): frames of all fields and choices interleaved."""
    whole, tracks = [], []
    for index in range(draw(st.integers(1, 3))):
        message = draw(messages())
        finish = draw(st.sampled_from(["stop", "length", "tool_calls"]))
        tokens = [{"token": token, "logprob": -0.5} for token in draw(st.lists(TEXT, max_size=4))]
        logprobs = {"content": tokens, "refusal": None} if tokens else None
        whole.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
        fields: list[list[dict[str, Any]]] = [
            [{name: part} for part in pieces(draw, value)]
            for name, value in message.items()
            if isinstance(value, str) and name != "role"
        ]
        calls = message.get("tool_calls", [])
        fields += [call_frames(draw, number, call) for number, call in enumerate(calls)]
        frames = [delta_of(index, role="assistant", content="" if message["content"] else None)]
        frames += [delta_of(index, **delta) for delta in interleaved(draw, fields)]
        for token in tokens:
            frames.append(delta_of(index) | {"logprobs": {"content": [token], "refusal": None}})
        tracks.append([*frames, delta_of(index, finish)])
    return whole, [chunk_of(frame, created=7) for frame in interleaved(draw, tracks)]


def interleaved(draw: st.DrawFn, tracks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    left, merged = [list(track) for track in tracks if track], []
    while left:
        track = left[draw(st.integers(0, len(left) - 1))]
        merged.append(track.pop(0))
        left = [track for track in left if track]
    return merged


@given(streams())
def test_a_stream_however_cut_and_interleaved_gives_the_whole_answer(
    made: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    whole, chunks = made
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    assembly = assembled([*chunks, chunk_of(usage=usage, system_fingerprint="fp")], n=len(whole))
    assert assembly.finished
    assert assembly.answer() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "model-1",
        "choices": whole,
        "usage": usage,
        "system_fingerprint": "fp",
    }


@given(st.lists(TEXT, min_size=1, max_size=5))
def test_a_text_completion_is_rebuilt(parts: list[str]) -> None:
    assembly = Assembly("text", "cmpl-1", "model-1")
    for place, part in enumerate(parts):
        logprobs = {"tokens": [part], "token_logprobs": [-1.0], "top_logprobs": None, "text_offset": [place]}
        assert assembly.add({"choices": [{"index": 0, "text": part, "logprobs": logprobs}]})
    assembly.add({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    count = len(parts)
    assert assembly.answer(5)["created"] == 5
    assert assembly.answer()["choices"] == [
        {
            "index": 0,
            "text": "".join(parts),
            "finish_reason": "stop",
            "logprobs": {
                "tokens": parts,
                "token_logprobs": [-1.0] * count,
                "top_logprobs": None,
                "text_offset": list(range(count)),
            },
        }
    ]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"refusal": "no"},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"function_call": {"name": "f"}},
        {"tool_calls": [{"index": 0, "id": "call_0", "function": {"name": "f"}}]},
    ],
)
def test_substance_is_content(delta: dict[str, Any]) -> None:
    assert has_content(chunk_of(delta_of(**delta)))
    assert has_content(chunk_of(delta_of(role="assistant"), delta_of(1, **delta)))
    assert assembled([chunk_of(delta_of(**delta))]).has_content


@pytest.mark.parametrize(
    "chunk",
    [
        chunk_of(),
        {"id": "x"},
        chunk_of(usage={"prompt_tokens": 5, "completion_tokens": 9}),
        chunk_of(delta_of()),
        chunk_of(delta_of(role="assistant", content="", refusal=None, tool_calls=[])),
        chunk_of(delta_of(finish_reason="stop")),
        chunk_of({"index": 0, "delta": None}),
        {"choices": [{"index": 0, "text": ""}]},
    ],
)
def test_lifecycle_frames_are_not_content(chunk: dict[str, Any]) -> None:
    """S1."""
    assert not has_content(chunk)
    assembly = assembled([chunk])
    assert not assembly.has_content


def test_an_answer_is_finished_when_every_choice_asked_for_has_its_reason() -> None:
    """S3."""
    assembly = assembled([chunk_of(delta_of(0, "stop"))], n=2)
    assert not assembly.finished
    assembly.add(chunk_of(delta_of(1, content="a")))
    assert not assembly.finished
    assembly.add(chunk_of(delta_of(1, "length")))
    assert assembly.finished
    assert not assembled([]).finished


def test_tool_calls_without_an_index_are_told_apart_by_id() -> None:
    """S7."""
    parts = [("call_a", "{"), (None, "}"), ("call_b", "["), ("call_b", "]")]
    calls = [{"id": call_id, "function": {"name": "f", "arguments": text}} for call_id, text in parts]
    answer = assembled([chunk_of(delta_of(tool_calls=[call])) for call in calls]).answer()
    made = answer["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]) for call in made] == [
        ("call_a", {"name": "f", "arguments": "{}"}),
        ("call_b", {"name": "f", "arguments": "[]"}),
    ]


def test_a_name_on_every_chunk_is_one_name_and_empty_ids_change_nothing() -> None:
    first = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": "1"}}
    same = {"index": 0, "id": "call_a", "function": {"name": "f", "arguments": ""}}
    again = {"index": 0, "id": "", "type": None, "function": {"name": None, "arguments": "2"}}
    answer = assembled([chunk_of(delta_of(tool_calls=[call])) for call in (first, same, again)]).answer()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "12"}}],
    }


def test_legacy_function_calls_and_custom_tools_are_joined() -> None:
    chunks = [chunk_of(delta_of(function_call={"name": "f", "arguments": "{"}))]
    chunks.append(chunk_of(delta_of(function_call={"arguments": "}"})))
    message = assembled(chunks).answer()["choices"][0]["message"]
    assert message["function_call"] == {"name": "f", "arguments": "{}"}
    custom = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": "select"}}
    more = {"index": 0, "custom": {"input": " 1"}}
    chunks = [chunk_of(delta_of(tool_calls=[part])) for part in (custom, more)]
    assert assembled(chunks).answer()["choices"][0]["message"]["tool_calls"] == [
        {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]


def test_unknown_fields_that_are_no_strings_are_last_wins_and_null_never_wins() -> None:
    chunks = [
        chunk_of(delta_of(annotations=[1]) | {"stop_reason": None}, service_tier="default"),
        chunk_of(delta_of(annotations=[1, 2]) | {"stop_reason": 7}, service_tier=None),
    ]
    answer = assembled(chunks).answer()
    assert answer["service_tier"] == "default"
    assert answer["choices"][0]["stop_reason"] == 7
    assert answer["choices"][0]["message"]["annotations"] == [1, 2]


def test_an_answer_was_made_when_its_first_chunk_was() -> None:
    assert assembled([chunk_of(), chunk_of(created=7), chunk_of(created=9)]).answer(5)["created"] == 7


def test_an_empty_answer_keeps_its_empty_string() -> None:
    answer = assembled(
        [chunk_of(delta_of(role="assistant", content="")), chunk_of(delta_of(0, "stop"))]
    ).answer()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_assembly_leaves_the_chunks_as_they_are() -> None:
    chunk = chunk_of(delta_of(content="a") | {"logprobs": {"content": [1]}})
    assembly = assembled([chunk, chunk])
    assert assembly.answer()["choices"][0]["logprobs"] == {"content": [1, 1]}
    assert chunk["choices"][0]["logprobs"] == {"content": [1]}


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": "no"},
        {"choices": [1]},
        {"choices": [{"index": "0", "delta": {}}]},
        {"choices": [{"index": 0, "delta": "text"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": {"why": "stop"}}]},
        chunk_of(delta_of(tool_calls={"index": 0})),
        chunk_of(delta_of(tool_calls=[{"index": "a"}])),
    ],
)
def test_a_chunk_of_another_shape_is_refused_with_its_path(chunk: dict[str, Any]) -> None:
    with pytest.raises(MalformedChunkError, match=r"choices|delta"):
        assembled([chunk])
