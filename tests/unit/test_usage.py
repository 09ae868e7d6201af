"""Tokens are counted once, from the backend's last word, and estimated only where it said none (S8)."""

from __future__ import annotations

from typing import Any

import pytest

from services.core.assembly import Assembly
from services.core.usage import counted

ZERO = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
NINE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}


def spoken(*chunks: tuple[str, Any]) -> Assembly:
    """An answer of one choice from the content and the usage of each chunk."""
    assembly = Assembly("chat", "chatcmpl-1", "model-1")
    for content, usage in chunks:
        choices = [{"index": 0, "delta": {"content": content}}] if content else []
        assembly.add({"choices": choices, "usage": usage})
    return assembly


def output_tokens(assembly: Assembly) -> tuple[int, bool]:
    """The output tokens of the answer's usage, and whether it is an estimate."""
    estimate = assembly.estimated_output_tokens()
    usage = counted(assembly.usage, prompt_bytes=0, output_tokens=lambda: estimate)
    return usage.output_tokens, usage.estimated


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        ([None, None, NINE], 9),
        ([NINE, None, None], 9),
        ([ZERO, {**NINE, "completion_tokens": 4}, NINE], 9),
        ([None, None, ZERO], 0),
    ],
)
def test_usage_is_counted_once_from_whatever_chunk_has_it(usages: list[Any], expected: int) -> None:
    assert output_tokens(spoken(*[("some words", usage) for usage in usages])) == (expected, False)


def test_usage_is_estimated_only_where_absent_and_marked_so() -> None:
    silent = spoken(("word " * 40, None), ("", None))
    assert output_tokens(silent) == (50, True)
    assert "usage" not in silent.answer()
    assert output_tokens(spoken(*[(letter, None) for letter in "abcdef"])) == (6, True)
    assert spoken(("word", "n/a")).usage is None


@pytest.mark.parametrize("wrong", [{}, {"completion_tokens": None}, {"completion_tokens": "7"}])
def test_a_count_that_is_none_leaves_the_estimate(wrong: dict[str, Any]) -> None:
    assert output_tokens(spoken(("word", {"prompt_tokens": 5} | wrong))) == (1, True)
