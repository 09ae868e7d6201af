"""Plausible log probabilities: the same token always has the same, alternatives are less likely."""

from __future__ import annotations

import zlib
from typing import Any

from loadtest.model_server.words import VOCABULARY, words_of


def _likelihood(token: str) -> float:
    return -(zlib.crc32(token.encode("utf-8", "surrogatepass")) % 1000) / 1000


def _alternatives(token: str, count: int) -> list[tuple[str, float]]:
    """The token first, then others, each less likely than the one before."""
    top = _likelihood(token)
    others = [word for word in VOCABULARY if word != token.strip()][: max(0, count - 1)]
    return [(token, top), *((f" {word}", top - 1 - at) for at, word in enumerate(others))][:count]


def _entry(token: str, likelihood: float) -> dict[str, Any]:
    return {"token": token, "logprob": likelihood, "bytes": list(token.encode("utf-8", "surrogatepass"))}


def chat_logprobs(text: str, alternatives: int) -> dict[str, Any]:
    content = [
        {
            **_entry(token, _likelihood(token)),
            "top_logprobs": [_entry(*each) for each in _alternatives(token, alternatives)],
        }
        for token in words_of(text)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(text: str, alternatives: int) -> dict[str, Any]:
    tokens = words_of(text)
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [_likelihood(token) for token in tokens],
        "top_logprobs": [dict(_alternatives(token, alternatives)) for token in tokens],
        "text_offset": offsets[:-1],
    }
