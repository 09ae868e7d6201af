"""Answers that say whose they are: every word names its attempt, its place, and how many there are.

So a reader that knows nothing of the services sees a splice, a gap, a repeat, a cut and another's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORD = re.compile(r"([0-9A-Za-z-]+)\.(\d+)/(\d+)")


def answer_of(attempt: str, words: int) -> str:
    return " ".join(f"{attempt}.{place}/{words}" for place in range(words))


@dataclass(frozen=True, slots=True)
class Heard:
    """Of which attempt a text is, whether it is all of it, and what is wrong with it (None: nothing)."""

    attempt: str | None
    whole: bool
    fault: str | None


def heard(text: str) -> Heard:
    """Reads a text, or the beginning of one; a word may be cut where the text ends."""
    parts = text.split()
    words = [_WORD.fullmatch(part) for part in parts]
    if words and words[-1] is None:  # cut in the middle of a word
        words.pop()
    read = [(word[1], int(word[2]), int(word[3])) for word in words if word is not None]
    if len(read) < len(words):
        return Heard(None, False, "words that no model said")
    attempts = {attempt for attempt, _, _ in read}
    if len(attempts) > 1:
        return Heard(None, False, f"spliced from {len(attempts)} attempts")
    if [place for _, place, _ in read] != list(range(len(read))):
        return Heard(None, False, f"a gap or a repeat: {[place for _, place, _ in read]}")
    whole = bool(read) and len(read) == len(parts) == read[0][2]
    return Heard(read[0][0] if read else None, whole, None)
