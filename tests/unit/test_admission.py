"""What may enter: known fields of a wrong type or range are named, everything else passes untouched."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.admission import MOST_LEVELS, Admitted, admit
from services.core.call_options import CallOptions, read_options
from services.core.field_checks import Refusal

HI = [{"role": "user", "content": "hi"}]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HI, **more}


def param(verdict: Admitted | Refusal) -> str | None:
    assert isinstance(verdict, Refusal)
    return verdict.param


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"seed": 1.0}, "seed"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [*HI, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
            "messages[0].tool_calls[0].id",
        ),
    ],
)
def test_a_wrong_field_is_named(more: dict[str, Any], named: str) -> None:
    assert param(admit("chat", chat(**more))) == named


@pytest.mark.parametrize(
    ("prompt", "good"),
    [
        ("x", True),
        (["x", "y"], True),
        ([1, 2], True),
        ([[1], [2]], True),
        ([], False),
        ([1, "x"], False),
        ({}, False),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, good: bool) -> None:
    verdict = admit("completion", {"model": "m", "prompt": prompt})
    assert isinstance(verdict, Admitted) == good


def test_null_and_unknown_fields_pass() -> None:
    nulls = dict.fromkeys(("temperature", "stop", "tools", "stream_options", "metadata", "n"))
    assert isinstance(admit("chat", chat(**nulls, x_new={"deep": [1]}, top_k=5)), Admitted)


def test_what_a_body_uses_is_seen() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    body = chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        response_format={"type": "json_schema", "json_schema": {"name": "s"}},
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=5,
    )
    verdict = admit("chat", body)
    assert isinstance(verdict, Admitted)
    assert verdict.features == {"tools", "json_schema", "vision"}
    assert (verdict.stream, verdict.include_usage, verdict.output_tokens) == (True, True, 5)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
    st.sampled_from(
        [
            "messages",
            "tools",
            "stop",
            "n",
            "response_format",
            "metadata",
            "stream_options",
            "tool_choice",
            "logit_bias",
            "functions",
        ]
    ),
)
def test_no_json_makes_the_check_itself_fail(value: Any, name: str) -> None:
    verdict = admit("chat", chat(**{name: value}))
    assert isinstance(verdict, (Admitted, Refusal))


@given(st.text(min_size=1, max_size=4000), st.text(min_size=1, max_size=400))
def test_more_text_is_never_fewer_tokens(one: str, more: str) -> None:
    def tokens(content: str) -> int:
        verdict = admit("chat", chat(messages=[{"role": "user", "content": content}]))
        assert isinstance(verdict, Admitted)
        return verdict.input_tokens

    assert tokens(one + more) >= tokens(one)


@pytest.mark.parametrize("where", ["tools", "unknown"])
def test_what_could_be_read_and_not_written_again_is_refused_at_the_edge(where: str) -> None:
    def nested(levels: int) -> Any:
        return orjson.loads(b"[" * levels + b"]" * levels)

    assert isinstance(admit("chat", chat(unknown=nested(MOST_LEVELS - 1))), Admitted)
    verdict = admit("chat", chat(**{where: nested(1_000)}))
    assert isinstance(verdict, Refusal)
    assert "128 levels" in verdict.message


def test_a_header_wins_over_metadata() -> None:
    headers = {"x-chimera-priority": "batch", "x-chimera-required-capabilities": "coding, vision"}
    metadata = {"chimera_priority": "standard", "chimera_deadline_ms": "5000", "user": "kept"}
    assert read_options(headers, metadata) == CallOptions(
        priority="batch", deadline_ms=5000, required_capabilities=("coding", "vision")
    )


@pytest.mark.parametrize(
    ("headers", "metadata", "named"),
    [
        ({"x-chimera-priority": "urgent"}, {}, "x-chimera-priority"),
        ({"x-chimera-objective": "speed"}, {}, "x-chimera-objective"),
        ({"x-chimera-deadline-ms": "0"}, {}, "x-chimera-deadline-ms"),
        ({"x-chimera-deadline-ms": "604800001"}, {}, "x-chimera-deadline-ms"),
        ({"x-chimera-deadline-ms": "-5"}, {}, "x-chimera-deadline-ms"),
        ({"x-chimera-deadline-ms": "1e3"}, {}, "x-chimera-deadline-ms"),
        ({"x-chimera-session-id": ""}, {}, "x-chimera-session-id"),
        ({"x-chimera-required-capabilities": "a,,b"}, {}, "x-chimera-required-capabilities"),
        ({}, {"chimera_objective": "speed"}, "metadata.chimera_objective"),
        ({}, {"chimera_prio": "batch"}, "metadata.chimera_prio"),
    ],
)
def test_a_wrong_option_is_named(headers: dict[str, str], metadata: dict[str, str], named: str) -> None:
    verdict = read_options(headers, metadata)
    assert isinstance(verdict, Refusal)
    assert verdict.param == named


def test_an_objective_given_as_priority_is_told_where_it_belongs() -> None:
    verdict = read_options({}, {"chimera_priority": "quality"})
    assert isinstance(verdict, Refusal)
    assert "metadata.chimera_objective" in verdict.message
