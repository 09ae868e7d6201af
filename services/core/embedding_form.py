"""Embeddings as OpenAI's clients ask for them and get them: inputs, vectors as floats or base64, usage.

Pure. Sizes are counts, tokens are estimates where the backend counted none.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.core.answer_choice import MalformedChunkError
from services.core.field_checks import Refusal, expected, is_whole
from services.core.usage import text_tokens

MOST_INPUTS = 2048  # of one request, by OpenAI's API reference
_WHAT = f"a string, or a list of 1 to {MOST_INPUTS} strings or lists of tokens, none of them empty"


def check_input(value: Any, path: str) -> Refusal | None:
    """Whether `input` is a text, a list of texts, a list of tokens or a list of such lists."""
    if isinstance(value, str):
        return None if value else expected(path, "a string that is not empty")
    if not isinstance(value, list) or not value:
        return expected(path, _WHAT)
    if is_whole(value[0]):
        return None if _are_tokens(value) else expected(path, _WHAT)
    if len(value) > MOST_INPUTS:
        return expected(path, f"at most {MOST_INPUTS} inputs")
    good = _is_text if isinstance(value[0], str) else _are_tokens
    wrong = next((place for place, item in enumerate(value) if not good(item)), None)
    if wrong is None:
        return None
    what = "a string that is not empty" if good is _is_text else "a list of tokens that is not empty"
    return expected(f"{path}[{wrong}]", what)


def _is_text(item: Any) -> bool:
    return isinstance(item, str) and bool(item)


def _are_tokens(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(is_whole(token) and token >= 0 for token in item)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one request, each as it stands in a list. Texts and tokens cannot share a call."""

    form: Literal["text", "tokens"]
    items: Sequence[Any]

    def tokens(self) -> int:
        return sum(input_tokens(item) for item in self.items)


def input_tokens(item: Any) -> int:
    return max(1, text_tokens(item)) if isinstance(item, str) else len(item)


def inputs_of(value: Any) -> Inputs | None:
    """None where it is not what an embedding is made of."""
    if check_input(value, "input") is not None:
        return None
    if isinstance(value, str):
        return Inputs("text", [value])
    if is_whole(value[0]):
        return Inputs("tokens", [value])
    return Inputs("text" if isinstance(value[0], str) else "tokens", value)


def rows_of(answer: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The `count` rows in the order of the inputs. Raises MalformedChunkError where one is missing."""
    rows = answer.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or len(rows) != count:
        raise MalformedChunkError(f"data is not a list of {count} objects")
    placed = {row.get("index", place): row for place, row in enumerate(rows)}
    try:
        return [placed[place] for place in range(count)]
    except KeyError:
        raise MalformedChunkError("data[].index does not count the inputs") from None


def row_as(row: Mapping[str, Any], place: int, encoding: str) -> dict[str, Any]:
    """A row at its place in the caller's answer, its vector in the caller's encoding: float or base64."""
    vector = row.get("embedding")
    try:
        if encoding == "base64" and isinstance(vector, list):
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        elif encoding != "base64" and isinstance(vector, str):
            packed = base64.b64decode(vector, validate=True)
            vector = list(struct.unpack(f"<{len(packed) // 4}f", packed))
    except (struct.error, OverflowError, binascii.Error, ValueError):
        raise MalformedChunkError("data[].embedding is neither numbers nor base64 of float32") from None
    if not isinstance(vector, (list, str)) or not vector:
        raise MalformedChunkError("data[].embedding is missing or empty")
    return {"object": "embedding", **row, "index": place, "embedding": vector}


def shared_usage(told: Any, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """The usage of each request of a call, by the estimated tokens of its inputs: at least one each.

    The parts add up to what the backend said. One request alone has the backend's own words; any other part,
    and what a backend did not say at all, is marked as an estimate.
    """
    counts = told if isinstance(told, dict) else {}
    if not all(is_whole(counts.get(name)) for name in _COUNTS):
        return [dict.fromkeys(_COUNTS, part) | {"estimated": True} for part in tokens]
    if len(tokens) == 1:
        return [counts]
    parts = [split(counts[name], tokens) for name in _COUNTS]
    return [{**dict(zip(_COUNTS, part, strict=True)), "estimated": True} for part in zip(*parts, strict=True)]


_COUNTS = ("prompt_tokens", "total_tokens")


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts by weight that add up to `total` (largest remainders; among equals the first)."""
    weight = sum(weights)
    parts = [total * each // weight for each in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: -(total * weights[place] % weight))
    for place in by_remainder[: total - sum(parts)]:
        parts[place] += 1
    return parts
