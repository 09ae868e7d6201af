"""What goes to a backend and what comes back to a client."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.core import usage
from services.core.fleet import Pool
from services.core.rewrite import LLAMA_CPP, EventRewriter, backend_body, only_progress, wants_usage


def test_all_fields_but_the_model_and_the_stream_are_the_clients_own() -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "ü"}], "x_unknown": {"a": [1]}, "n": 2}
    pool = Pool("p", "shown", backend_model="real")
    sent = orjson.loads(backend_body(body, pool, streaming=True))
    assert sent == body | {"model": "real", "stream": True, "stream_options": {"include_usage": True}}
    options = {"stream": False, "stream_options": {"include_usage": False, "x": 1}}
    assert orjson.loads(backend_body(body | options, pool, streaming=True))["stream_options"] == {
        "include_usage": True,
        "x": 1,
    }
    assert orjson.loads(backend_body(body | options, pool, streaming=False)) == body | {"model": "real"}
    assert body["model"] == "auto"


def test_a_backend_that_takes_no_stream_options_gets_none() -> None:
    body = {"messages": [], "stream_options": {"include_usage": True}}
    sent = orjson.loads(backend_body(body, Pool("p", "m", stream_usage=False), streaming=True))
    assert "stream_options" not in sent
    assert sent["stream"] is True


def test_progress_of_a_prompt_is_asked_of_llama_cpp_and_shown_only_to_who_asked() -> None:
    pool = Pool("p", "m", provider=LLAMA_CPP)
    assert orjson.loads(backend_body({"messages": []}, pool, streaming=True))["return_progress"] is True
    assert "return_progress" not in orjson.loads(backend_body({"messages": []}, pool, streaming=False))
    event = {"choices": [], "prompt_progress": {"processed": 1}}
    assert only_progress(event, {})
    assert not only_progress(event, {"return_progress": True})
    assert not only_progress({"choices": []}, {})


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, "yes", {"include_usage": "true"}])
def test_usage_is_only_for_who_asked(options: Any) -> None:
    assert not wants_usage({"stream_options": options})


def test_usage_leaves_the_stream_and_is_said_once() -> None:
    silent = EventRewriter("chat", "t", "m", 5, usage_asked=False)
    asked = EventRewriter("chat", "t", "m", 5, usage_asked=True)
    told = {"prompt_tokens": 1}
    assert silent.event({"choices": [], "usage": told}) is None
    assert silent.event({"choices": [{"index": 0}], "usage": told, "created": 7}) == {
        "choices": [{"index": 0}],
        "id": "chatcmpl-t",
        "object": "chat.completion.chunk",
        "model": "m",
        "created": 7,
    }
    event = asked.event({"choices": [{"index": 0}], "usage": told})
    assert event is not None
    assert event["usage"] is None
    assert asked.usage_event(told)["usage"] == told
    assert asked.usage_event(told)["created"] == 5


def test_counts_that_are_there_stand_and_only_missing_ones_are_estimated() -> None:
    whole = usage.counted(
        {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 3}},
        prompt_bytes=400,
        output_tokens=lambda: 9,
    )
    assert (whole.input_tokens, whole.output_tokens, whole.cached_tokens, whole.estimated) == (0, 0, 3, False)
    half = usage.counted({"prompt_tokens": 12}, prompt_bytes=400, output_tokens=lambda: 9)
    assert (half.input_tokens, half.output_tokens, half.estimated) == (12, 9, True)
    none = usage.counted(None, prompt_bytes=401, output_tokens=lambda: 9)
    assert (none.input_tokens, none.estimated) == (101, True)
    assert usage.shown(None, none)["estimated"] is True
    assert usage.shown({"prompt_tokens": 0, "completion_tokens": 0, "extra": 1}, whole)["extra"] == 1
    embedded = usage.counted({"prompt_tokens": 4, "total_tokens": 4}, prompt_bytes=1, output_tokens=lambda: 0)
    assert (embedded.output_tokens, embedded.estimated) == (0, False)
