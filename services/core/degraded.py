"""The floor below a failed request: an answer from before, or a fixed text; marked as what it is."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from services.core.admission import BodyKind
from services.core.rewrite import answer_id

Degraded = Literal["cached", "canned"]
MARK = "chimera"
_NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def question_key(tenant: str, kind: BodyKind, pool: str, body: Mapping[str, Any]) -> bytes:
    """What two requests must share to share an answer: tenant, kind, pool and every field of the body."""
    whole = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(orjson.dumps([tenant, kind, pool]) + whole).digest()


def canned_answer(
    text: str, kind: BodyKind, task_id: str, model: str, created_s: int, body: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A whole answer that says `text`, once for each choice asked for; None where a text is no answer.

    That is where JSON of some form was asked for and the text is none.
    """
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") != "text" and not _is_json(text):
        return None
    choices = []
    for index in range(body.get("n") or 1):
        said = {"message": {"role": "assistant", "content": text}} if kind == "chat" else {"text": text}
        choices.append({"index": index, **said, "logprobs": None, "finish_reason": "stop"})
    return {
        "id": answer_id(kind, task_id),
        "object": "chat.completion" if kind == "chat" else "text_completion",
        "created": created_s,
        "model": model,
        "choices": choices,
        "usage": dict(_NO_USAGE),
    }


def marked(answer: Mapping[str, Any], how: Degraded) -> dict[str, Any]:
    return {**answer, MARK: {"degraded": how}}


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer as it was given, its JSON, and the pool that gave it."""

    answer: bytes
    pool: str
    expires_s: float


class KeptAnswers:
    """The latest answers by key, so many and so many bytes of them, for `ttl_s` seconds each."""

    def __init__(self, most: int, most_bytes: int, ttl_s: float) -> None:
        self._most, self._most_bytes, self._ttl_s = most, most_bytes, ttl_s
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, answer: bytes, pool: str, now_s: float) -> None:
        self._drop(key)
        if len(answer) > self._most_bytes:
            return
        self._kept[key] = Kept(answer, pool, now_s + self._ttl_s)
        self.bytes += len(answer)
        while len(self._kept) > self._most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, key: bytes, now_s: float) -> Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_s >= kept.expires_s:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return kept

    def _drop(self, key: bytes) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.bytes -= len(gone.answer)
