"""An OpenAI chat said in Anthropic's words: taken by the server with the same meaning, or clearly refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.admission import Admitted, admit
from services.core.anthropic_request import DEFAULT_MAX_TOKENS, messages_request
from services.core.field_checks import Refusal
from services.core.fleet import Pool
from tests.backends_like.messages_checks import fault_in

POOL = Pool("claude", "claude-x", backend="anthropic", backend_model="claude-x-2026", context_tokens=200_000)
PNG = "data:image/png;base64,iVBORw0KGgo="


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "claude", "messages": list(messages), **more}


def user(content: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def calls(*names: str) -> dict[str, Any]:
    made = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}
        for name in names
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(name: str, content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{name}", "content": content}


def sent(body: dict[str, Any], *, streaming: bool = False) -> dict[str, Any]:
    made = messages_request(body, POOL, streaming=streaming)
    assert not isinstance(made, Refusal), made
    assert fault_in(made) is None
    return made


def refused(body: dict[str, Any]) -> Refusal:
    made = messages_request(body, POOL, streaming=False)
    assert isinstance(made, Refusal)
    return made


def test_a_plain_chat_has_the_pools_model_and_a_limit() -> None:
    made = sent(chat(user()), streaming=True)
    assert made == {
        "model": "claude-x-2026",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
    }
    assert sent(chat(user(), max_completion_tokens=7, max_tokens=9))["max_tokens"] == 7
    small = Pool("p", "m", backend="anthropic", context_tokens=1_000)
    made_small = messages_request(chat(user()), small, streaming=False)
    assert isinstance(made_small, dict)
    assert made_small["max_tokens"] == 1_000


def test_system_and_developer_words_stand_beside_the_turns() -> None:
    made = sent(
        chat(
            {"role": "system", "content": "one"},
            user(),
            {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        )
    )
    assert [block["text"] for block in made["system"]] == ["one", "two"]
    assert [turn["role"] for turn in made["messages"]] == ["user"]


def test_pictures_by_data_and_by_address() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
    ]
    blocks = sent(chat(user(parts)))["messages"][0]["content"]
    assert blocks[1]["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    assert blocks[2]["source"] == {"type": "url", "url": "https://x/y.png"}


def test_results_of_one_round_stand_in_one_turn_before_what_the_user_says() -> None:
    made = sent(
        chat(user(), calls("a", "b"), user("and?"), result("a"), result("b", [{"type": "text", "text": "2"}]))
    )
    turns = made["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["type"] for block in turns[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert turns[1]["content"][0] == {"type": "tool_use", "id": "call_a", "name": "a", "input": {"a": 1}}


def test_ids_that_anthropic_would_not_take_still_match() -> None:
    call = calls("a")
    call["tool_calls"][0]["id"] = "functions.a:0"
    turns = sent(chat(user(), call, {"role": "tool", "tool_call_id": "functions.a:0", "content": ""}))[
        "messages"
    ]
    assert turns[1]["content"][0]["id"] == turns[2]["content"][0]["tool_use_id"] == "functions_a_0"
    assert "content" not in turns[2]["content"][0]


def test_tools_and_their_choice() -> None:
    tool = {
        "type": "function",
        "function": {"name": "a", "description": "d", "parameters": {"type": "object"}},
    }
    made = sent(chat(user(), tools=[tool]))
    assert made["tools"] == [{"name": "a", "description": "d", "input_schema": {"type": "object"}}]
    assert "tool_choice" not in made
    for said, wanted in (("none", "none"), ("auto", "auto"), ("required", "any")):
        assert sent(chat(user(), tools=[tool], tool_choice=said))["tool_choice"] == {"type": wanted}
    named = {"type": "function", "function": {"name": "a"}}
    one = sent(chat(user(), tools=[tool], tool_choice=named, parallel_tool_calls=False))
    assert one["tool_choice"] == {"type": "tool", "name": "a", "disable_parallel_tool_use": True}
    assert "tool_choice" not in sent(chat(user(), tool_choice="required"))


def test_sampling_stops_and_who_asks() -> None:
    made = sent(chat(user(), temperature=1.7, top_p=0.5, stop="END", user="u-1", seed=3, x_unknown=1))
    assert (made["temperature"], made["top_p"], made["stop_sequences"]) == (1, 0.5, ["END"])
    assert made["metadata"] == {"user_id": "u-1"}
    assert made.keys().isdisjoint({"seed", "x_unknown", "user"})
    assert sent(chat(user(), metadata={"user_id": "m", "chimera_priority": "batch"}))["metadata"] == {
        "user_id": "m"
    }


def test_json_is_asked_for_as_well_as_it_can_be() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    made = sent(chat(user(), response_format=form))
    assert made["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
    made = sent(chat({"role": "system", "content": "s"}, user(), response_format={"type": "json_object"}))
    assert "JSON object" in made["system"][1]["text"]
    assert "system" not in sent(chat(user(), response_format={"type": "text"}))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(user(), n=2), "n"),
        (chat(user(), logprobs=True), "logprobs"),
        (chat(user(), presence_penalty=0.5), "presence_penalty"),
        (chat(user(), logit_bias={"1": 5}), "logit_bias"),
        (chat(user(), functions=[{"name": "f"}]), "functions"),
        (chat(user([{"type": "input_audio", "input_audio": {}}])), "messages[0].content[0].type"),
        (
            chat(user([{"type": "image_url", "image_url": {"url": "file:///x"}}])),
            "messages[0].content[0].image_url.url",
        ),
        (chat({"role": "function", "name": "f", "content": "1"}), "messages[0].role"),
        (chat({"role": "system", "content": "only"}), "messages"),
        (chat(user(""), {"role": "assistant", "content": ""}), "messages"),
        (chat(user(), tools=[{"type": "custom", "custom": {"name": "x"}}]), "tools[0].type"),
        (
            chat(
                user(),
                tools=[{"type": "function", "function": {"name": "a"}}],
                tool_choice={"type": "allowed_tools"},
            ),
            "tool_choice",
        ),
        (chat(user(), response_format={"type": "grammar"}), "response_format.type"),
        (
            chat(user(), response_format={"type": "json_schema", "json_schema": {}}),
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    refusal = refused(body)
    assert refusal.param == param
    assert param in refusal.message


def test_arguments_that_are_no_object_are_refused_where_they_stand() -> None:
    call = calls("a", "b")
    call["tool_calls"][1]["function"]["arguments"] = "{oops"
    assert refused(chat(user(), call)).param == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize(
    "neutral",
    [{"n": 1}, {"logprobs": False}, {"presence_penalty": 0}, {"frequency_penalty": 0.0}, {"logit_bias": {}}],
)
def test_what_says_nothing_is_left_out(neutral: dict[str, Any]) -> None:
    assert sent(chat(user(), **neutral)).keys() == {"model", "max_tokens", "messages"}


TEXTS = st.text(max_size=8)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
        st.just({"type": "image_url", "image_url": {"url": PNG}}),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What clients send: any order of speakers, rounds of tools answered at once, empty texts."""
    messages: list[dict[str, Any]] = [user(draw(st.one_of(TEXTS.filter(bool), PARTS)))]
    for round_ in range(draw(st.integers(0, 5))):
        speaker = draw(st.sampled_from(["system", "user", "assistant", "tools"]))
        if speaker == "tools":
            names = [f"{round_}_{at}" for at in range(draw(st.integers(1, 3)))]
            messages.append(calls(*names) | {"content": draw(st.none() | TEXTS)})
            messages += [result(name, draw(st.one_of(TEXTS, PARTS))) for name in draw(st.permutations(names))]
        else:
            messages.append({"role": speaker, "content": draw(TEXTS)})
    return messages


@given(conversations())
def test_whatever_is_admitted_is_taken_or_refused_and_no_word_is_lost(messages: list[dict[str, Any]]) -> None:
    body = chat(*messages)
    assert isinstance(admit("chat", body), Admitted)
    made = messages_request(body, POOL, streaming=True)
    if isinstance(made, Refusal):
        assert made.message
        return
    if made["messages"][0]["role"] == "user":
        assert fault_in(made) is None
    assert sorted(_words(messages)) == sorted(_words_of(made))


def _words(messages: list[dict[str, Any]]) -> list[str]:
    found = []
    for message in messages:
        content = message["content"] or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        found += [part["text"] for part in parts if part.get("text")]
    return found


def _words_of(made: dict[str, Any]) -> list[str]:
    blocks = list(made.get("system", ()))
    for turn in made["messages"]:
        for block in turn["content"]:
            blocks += block.get("content", ()) if block["type"] == "tool_result" else [block]
    return [block["text"] for block in blocks if block["type"] == "text"]
