"""Inputs of embeddings are what OpenAI's clients send; rows, encodings and usage come out as they expect."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.admission import Admitted, admit
from services.core.answer_choice import MalformedChunkError
from services.core.embedding_form import MOST_INPUTS, inputs_of, row_as, rows_of, shared_usage, split
from services.core.field_checks import Refusal

FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("given_input", "count"),
    [("x", 1), (["x", "yy"], 2), ([5, 6, 7], 1), ([[5], [6, 7]], 2), (["x"] * MOST_INPUTS, MOST_INPUTS)],
)
def test_an_input_has_four_forms(given_input: Any, count: int) -> None:
    verdict = admit("embedding", {"model": "m", "input": given_input, "dimensions": 3, "user": "u"})
    assert isinstance(verdict, Admitted)
    assert not verdict.stream
    found = inputs_of(given_input)
    assert found is not None
    assert len(found.items) == count


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["x"] * (MOST_INPUTS + 1)}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": ["x", 1]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [[1], ["x"]]}, "input[1]"),
        ({"input": [1, -1]}, "input"),
        ({"input": [1, True]}, "input"),
        ({"input": [1, "x"]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "3"}, "dimensions"),
        ({"user": 1}, "user"),
        ({"stream": True}, "stream"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"model": 3}, "model"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], named: str) -> None:
    verdict = admit("embedding", {"model": "m", "input": "x"} | more)
    assert isinstance(verdict, Refusal)
    assert verdict.param == named
    assert len(verdict.message) < 300


@given(st.integers(0, 10**9), st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_parts_add_up_and_are_within_one_of_their_share(total: int, weights: list[int]) -> None:
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) <= 1


@given(st.integers(0, 10**6), st.lists(st.integers(1, 5000), min_size=2, max_size=20))
def test_a_shared_calls_usage_adds_up_and_is_marked(total: int, tokens: list[int]) -> None:
    told = {"prompt_tokens": total, "total_tokens": total}
    shares = shared_usage(told, tokens)
    assert sum(share["prompt_tokens"] for share in shares) == total
    assert all(share["prompt_tokens"] == share["total_tokens"] and share["estimated"] for share in shares)


@pytest.mark.parametrize("told", [None, {}, {"prompt_tokens": 4}, {"prompt_tokens": "4", "total_tokens": 4}])
def test_usage_that_was_not_said_is_estimated(told: Any) -> None:
    assert shared_usage(told, [3]) == [{"prompt_tokens": 3, "total_tokens": 3, "estimated": True}]
    whole = {"prompt_tokens": 9, "total_tokens": 9, "cost": 1}
    assert shared_usage(whole, [3]) == [whole]


@given(FLOATS)
def test_an_encoding_is_turned_into_the_other_and_back(vector: list[float]) -> None:
    packed = row_as({"embedding": vector}, 0, "base64")["embedding"]
    assert struct.unpack(f"<{len(vector)}f", base64.b64decode(packed)) == tuple(vector)
    assert row_as({"embedding": packed}, 2, "float") == {
        "object": "embedding",
        "index": 2,
        "embedding": vector,
    }
    assert row_as({"embedding": packed}, 0, "base64")["embedding"] is packed


@pytest.mark.parametrize("wrong", [None, [], "", "%%%%", "AAA=", 7, ["x"], [1e300]])
def test_a_vector_that_is_none_is_refused(wrong: Any) -> None:
    for encoding in ("float", "base64"):
        if isinstance(wrong, list) and wrong and encoding == "float":
            continue  # passed as it is, for nothing reads it on its way
        if isinstance(wrong, str) and wrong and encoding == "base64":
            continue
        with pytest.raises(MalformedChunkError):
            row_as({"embedding": wrong}, 0, encoding)


def test_rows_come_in_the_order_of_the_inputs() -> None:
    rows: list[dict[str, Any]] = [{"index": 2}, {"index": 0}, {"index": 1}]
    assert [row["index"] for row in rows_of({"data": rows}, 3)] == [0, 1, 2]
    assert rows_of({"data": [{"a": 1}, {"a": 2}]}, 2) == [{"a": 1}, {"a": 2}]
    for data in (rows[:2], [{"index": 1}] * 3, [{"index": 5}, {}, {}], None, [1, 2, 3]):
        with pytest.raises(MalformedChunkError):
            rows_of({"data": data}, 3)
