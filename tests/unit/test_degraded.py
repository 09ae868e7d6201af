"""What is kept for the floor, and what a fixed answer looks like (CASES R7)."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.core.admission import BodyKind
from services.core.degraded import KeptAnswers, canned_answer, marked, question_key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(["model", "messages", "temperature", "n", "stream"]), JSON)
KINDS: st.SearchStrategy[BodyKind] = st.sampled_from(["chat", "completion"])
WHO = st.tuples(st.sampled_from(["a", "b"]), KINDS, st.sampled_from(["p", "q"]))
Who = tuple[str, BodyKind, str]


@given(WHO, BODIES, WHO, BODIES)
def test_r7_two_questions_share_a_key_only_where_everything_is_the_same(
    one: Who, body: dict[str, Any], other: Who, other_body: dict[str, Any]
) -> None:
    same = one == other and orjson.dumps(body, option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        other_body, option=orjson.OPT_SORT_KEYS
    )
    assert (question_key(*one, body) == question_key(*other, other_body)) == same
    backwards = dict(reversed(body.items()))
    assert question_key(*one, backwards) == question_key(*one, body)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 60), st.floats(0, 3)), max_size=60))
def test_what_is_kept_is_bounded_and_ages(puts: list[tuple[int, int, float]]) -> None:
    kept, now_s, latest = KeptAnswers(4, 100, ttl_s=5.0), 0.0, {}
    for key, size, passed_s in puts:
        now_s += passed_s
        kept.put(bytes([key]), b"x" * size, "pool", now_s)
        latest[key] = (size, now_s)
        assert len(kept) <= 4
        assert kept.bytes <= 100
        assert kept.get(bytes([key]), now_s) is not None
        for name, (length, at_s) in latest.items():
            found = kept.get(bytes([name]), now_s)
            assert found is None or (len(found.answer) == length and now_s < at_s + 5.0)
    assert kept.bytes == sum(len(each.answer) for each in kept._kept.values())


def test_one_that_fits_nowhere_takes_the_old_one_with_it() -> None:
    kept = KeptAnswers(4, 100, ttl_s=5.0)
    kept.put(b"k", b"old", "p", 0.0)
    kept.put(b"k", b"x" * 101, "p", 0.0)
    assert kept.get(b"k", 0.0) is None


def test_a_fixed_answer_has_as_many_choices_as_were_asked_for_and_says_what_it_is() -> None:
    answer = canned_answer("later", "chat", "t1", "m", 7, {"n": 2})
    assert answer is not None
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["later", "later"]
    assert answer["id"] == "chatcmpl-t1"
    text = canned_answer("later", "completion", "t1", "m", 7, {})
    assert text is not None
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "later")
    assert marked(text, "canned")["chimera"] == {"degraded": "canned"}


def test_a_text_is_no_answer_where_json_was_asked_for() -> None:
    body = {"response_format": {"type": "json_object"}}
    assert canned_answer("later", "chat", "t", "m", 0, body) is None
    assert canned_answer('{"later": true}', "chat", "t", "m", 0, body) is not None
    assert canned_answer("later", "chat", "t", "m", 0, {"response_format": {"type": "text"}}) is not None
