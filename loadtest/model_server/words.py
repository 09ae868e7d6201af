"""Tokens without a tokenizer: one token is one whitespace-separated word, and a chunk has at least one."""

from __future__ import annotations

import base64
import random
import re
import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

_WORD = re.compile(r"\s*\S+(?:\s+$)?|\s+$")
_STRIDE = 7  # coprime to the vocabulary, so that an answer visits all of it
VOCABULARY = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "inlet",
    "jetty",
    "knoll",
)


class Piece(NamedTuple):
    """One content chunk and what it counts for."""

    text: str
    tokens: int


def count(text: str) -> int:
    return len(text.split())


def words_of(text: str) -> list[str]:
    """The words with the white space before them; joined they are the text."""
    return _WORD.findall(text)


def written(prompt: str, choice: int, seed: int, chunks: int, chunk_tokens: int) -> tuple[Piece, ...]:
    """`chunks` pieces of `chunk_tokens` words each: the same for the same prompt, choice and seed."""
    start = zlib.crc32(f"{seed}:{choice}:{prompt}".encode("utf-8", "surrogatepass"))
    size = len(VOCABULARY)
    words = [" " + VOCABULARY[(start + at * _STRIDE) % size] for at in range(chunks * chunk_tokens)]
    if words:
        words[0] = words[0][1:]
    if chunk_tokens == 1:
        return tuple([Piece(word, 1) for word in words])
    groups = range(0, len(words), chunk_tokens)
    return tuple(Piece("".join(words[at : at + chunk_tokens]), chunk_tokens) for at in groups)


def cut(text: str, chunks: int | None, chunk_tokens: int) -> tuple[Piece, ...]:
    """An exact text in `chunks` pieces, between characters if it has fewer words. None: by `chunk_tokens`."""
    words = words_of(text)
    if chunks is None:
        chunks = -(-len(words) // chunk_tokens)
    parts = words if chunks <= len(words) else list(text)
    chunks = min(chunks, len(parts))
    edges = [at * len(parts) // chunks for at in range(chunks + 1)] if chunks else []
    texts = ("".join(parts[left:right]) for left, right in pairwise(edges))
    return tuple(Piece(each, max(1, count(each))) for each in texts)


def characters(text: str) -> tuple[Piece, ...]:
    return tuple(Piece(each, 1) for each in text)


def limited(pieces: tuple[Piece, ...], most: int) -> tuple[Piece, ...]:
    """The pieces up to `most` tokens; the last one may lose words."""
    kept: list[Piece] = []
    left = most
    for piece in pieces:
        if left <= 0:
            break
        fits = piece.tokens <= left
        kept.append(piece if fits else Piece("".join(words_of(piece.text)[:left]), left))
        left -= piece.tokens
    return tuple(kept)


def vector(text: str, dimensions: int, seed: int) -> list[float]:
    """A unit vector that depends on the text and the seed alone."""
    draw = random.Random(f"{seed}:{text}")
    raw = [draw.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in raw) ** 0.5 or 1.0
    return [value / length for value in raw]


def packed(values: list[float]) -> str:
    """Base64 of little-endian float32, which OpenAI's clients ask for."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
