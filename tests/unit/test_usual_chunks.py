"""The short cuts for the chunks that nearly every stream is made of end where the long way does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.core.assembly import Assembly
from services.core.chunk_form import ChunkForm

_ABSENT = object()


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(_ABSENT), strategy)


def _dict(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    made = st.fixed_dictionaries({name: _maybe(each) for name, each in fields.items()})
    return made.map(lambda found: {name: each for name, each in found.items() if each is not _ABSENT})


_text: st.SearchStrategy[str] = st.sampled_from(["", "a", "bc"])
_delta = _dict(
    content=st.one_of(_text, st.none()), role=st.just("assistant"), refusal=st.one_of(_text, st.none())
)
_choice = _dict(
    index=st.sampled_from([0, 0, 0, 1]),
    delta=st.one_of(_delta, st.fixed_dictionaries({"content": _text})),
    finish_reason=st.sampled_from([None, None, None, "stop", "eos", ""]),
    logprobs=st.none(),
)
_event = _dict(
    id=st.just("x"),
    created=st.sampled_from([0, 7]),
    model=st.just("m"),
    choices=st.lists(_choice, min_size=1, max_size=2),
    usage=st.sampled_from([None, {}, {"prompt_tokens": 1, "completion_tokens": 2}]),
    system_fingerprint=st.just("f"),
)
_events = st.lists(_event, max_size=12)


class _LongForm(ChunkForm):
    def _is_plain(self, choices: Any) -> bool:  # noqa: ARG002 - its base's shape
        return False


class _LongAssembly(Assembly):
    def _add_text(self, chunk: Any) -> bool:  # noqa: ARG002 - its base's shape
        return False


def _all(step: Callable[[dict[str, Any]], Any], events: list[dict[str, Any]]) -> list[Any]:
    return [step(event) for event in copy.deepcopy(events)]


@given(_events)
def test_a_chunk_is_made_normal_alike(events: list[dict[str, Any]]) -> None:
    short, long = ChunkForm("chat", "t", {}), _LongForm("chat", "t", {})
    assert _all(short.normal, events) == _all(long.normal, events)


@given(_events)
def test_an_answer_is_put_together_alike(events: list[dict[str, Any]]) -> None:
    normal = _all(ChunkForm("chat", "t", {}).normal, events)
    short, long = Assembly("chat", "id", "m"), _LongAssembly("chat", "id", "m")
    assert _all(short.add, normal) == _all(long.add, normal)
    assert short.answer() == long.answer()
    assert short.estimated_output_tokens() == long.estimated_output_tokens()
    assert (short.finished, short.has_content) == (long.finished, long.has_content)
