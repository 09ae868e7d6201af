"""A whole OpenAI answer (chat or text completion) rebuilt from the chunks of its stream.

Usage is the last one that any chunk carries, so a cumulative one is counted once and an explicit 0 stays 0.
How choices are put together: answer_choice.py.
"""

from typing import Any, Literal

from services.core.answer_choice import (
    ChoiceAssembly,
    Json,
    MalformedChunkError,
    choice_has_content,
    dicts,
    index_of,
    last_wins,
)
from services.core.usage import estimated_tokens

__all__ = ["Assembly", "Json", "MalformedChunkError", "has_content"]

_OBJECTS = {"chat": "chat.completion", "text": "text_completion"}
_TEXT_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})
_OWN_FIELDS = frozenset({"id", "model", "object", "choices", "usage", "created"})


def has_content(chunk: Json) -> bool:
    """Whether a chunk carries content, refusal, reasoning or a tool call. Raises MalformedChunkError."""
    return any(choice_has_content(choice) for choice in dicts(chunk.get("choices"), "choices"))


class Assembly:
    """Takes the chunks of one answer in order. `n` is how many choices were asked for."""

    __slots__ = (
        "_choices",
        "_content_chunks",
        "_created_s",
        "_extra",
        "_id",
        "_kind",
        "_model",
        "_n",
        "_usage",
    )

    def __init__(self, kind: Literal["chat", "text"], answer_id: str, model: str, n: int = 1) -> None:
        self._kind = kind
        self._id = answer_id
        self._model = model
        self._n = n
        self._choices: dict[int, ChoiceAssembly] = {}
        self._extra: dict[str, Any] = {}
        self._usage: Json | None = None
        self._created_s: int | None = None
        self._content_chunks = 0

    @property
    def usage(self) -> Json | None:
        """The backend's own usage, as it said it; None when no chunk had one."""
        return self._usage

    @property
    def has_content(self) -> bool:
        """Whether any chunk so far had content."""
        return self._content_chunks > 0

    @property
    def finished(self) -> bool:
        """Whether every choice that was asked for, and every one seen, has its finish reason."""
        return len(self._choices) >= self._n and all(
            choice.finish_reason is not None for choice in self._choices.values()
        )

    @property
    def finish_reasons(self) -> set[str | None]:
        return {choice.finish_reason for choice in self._choices.values()}

    def add(self, chunk: Json) -> bool:
        """Take the next chunk; returns whether it has content. A MalformedChunkError voids the answer."""
        return self._add_text(chunk) or self._add(chunk)

    def _add_text(self, chunk: Json) -> bool:
        """Whether it was what nearly every chunk is: more text of one choice that has begun."""
        choices = chunk.get("choices")
        if (
            type(choices) is not list
            or len(choices) != 1
            or self._created_s is None
            or chunk.get("usage") is not None
        ):
            return False
        choice = choices[0]
        if (
            type(choice) is not dict
            or not choice.keys() <= _TEXT_CHOICE
            or choice.get("logprobs") is not None
        ):
            return False
        index, delta = choice.get("index"), choice.get("delta")
        held = self._choices.get(index) if type(index) is int else None
        if held is None or type(delta) is not dict or choice.get("finish_reason") is not None:
            return False
        if not held.add_text(delta):
            return False
        for name in chunk.keys() - _OWN_FIELDS:
            last_wins(self._extra, name, chunk[name])
        self._content_chunks += 1
        return True

    def _add(self, chunk: Json) -> bool:
        choices = dicts(chunk.get("choices"), "choices")
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        created = chunk.get("created")
        if self._created_s is None and isinstance(created, int):
            self._created_s = created
        for name in chunk.keys() - _OWN_FIELDS:
            last_wins(self._extra, name, chunk[name])
        content = False
        for choice in choices:
            index = index_of(choice, 0, "choices[].index")
            held = self._choices.get(index)
            if held is None:
                held = self._choices[index] = ChoiceAssembly()
            held.add(choice)
            content = content or choice_has_content(choice)
        self._content_chunks += content
        return content

    def estimated_output_tokens(self) -> int:
        """From the chunks and bytes that came, for a backend that counted nothing itself."""
        content_bytes = sum(choice.content_bytes() for choice in self._choices.values())
        return max(self._content_chunks, estimated_tokens(content_bytes))

    def answer(self, created_s: int = 0) -> dict[str, Any]:
        """The unstreamed answer; `created_s` (Unix time) stands in where no chunk said when it was made."""
        whole: dict[str, Any] = {
            "id": self._id,
            "object": _OBJECTS[self._kind],
            "created": created_s if self._created_s is None else self._created_s,
            "model": self._model,
            "choices": [
                self._choices[index].whole(index, self._kind == "chat") for index in sorted(self._choices)
            ],
            **self._extra,
        }
        if self._usage is not None:
            whole["usage"] = self._usage
        return whole
