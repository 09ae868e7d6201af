"""The rest of a stream, rebuilt from the whole answer: what has been sent of each field is its prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
_NOT_IN_CHUNKS = frozenset({"choices", "usage", "object"})
_CHUNK_OBJECTS = {"chat.completion": "chat.completion.chunk"}


class Sent:
    """How much of an answer has been delivered: lengths by choice and field, never the text itself."""

    __slots__ = ("_choices", "answer_id", "usage")

    def __init__(self) -> None:
        self._choices: dict[int, _SentChoice] = {}
        self.answer_id: Any = None
        self.usage = False

    def add(self, event: Json) -> None:
        if self.answer_id is None:
            self.answer_id = event.get("id")
        if event.get("usage"):
            self.usage = True
        for choice in event.get("choices") or ():
            self.choice(choice.get("index", 0)).add(choice)

    def choice(self, index: int) -> _SentChoice:
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = _SentChoice()
        return found


class _SentChoice:
    """Lengths by path (`content`, `tool_calls.0.function.arguments`); 1 for what is no string."""

    __slots__ = ("begun", "finished", "lengths")

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.begun = False
        self.finished = False

    def add(self, choice: Json) -> None:
        self.begun = True
        if choice.get("finish_reason"):
            self.finished = True
        if "text" in choice:
            self._grow("text", choice["text"])
        for name, value in (choice.get("delta") or {}).items():
            if name == "tool_calls":
                for position, call in enumerate(value or ()):
                    self._grow(f"tool_calls.{call.get('index', position)}", call)
            else:
                self._grow(name, value)
        if isinstance(choice.get("logprobs"), dict):
            self._grow("logprobs", choice["logprobs"])

    def _grow(self, path: str, value: Any) -> None:
        if isinstance(value, dict):
            self.lengths.setdefault(path, 1)
            for name, item in value.items():
                self._grow(f"{path}.{name}", item)
        elif value is not None:
            more = len(value) if isinstance(value, (str, list)) else 1
            self.lengths[path] = self.lengths.get(path, 0) + more

    def rest(self, path: str, value: Any) -> Any:
        """What of `value` has not been sent: the suffix of a string or list, the new parts of an object."""
        sent = self.lengths.get(path)
        if sent is None:
            return value
        if isinstance(value, (str, list)):
            return value[sent:] or None
        if isinstance(value, dict):
            rests = {name: self.rest(f"{path}.{name}", item) for name, item in value.items()}
            return {name: item for name, item in rests.items() if item is not None} or None
        return None


def remaining_events(answer: Json, sent: Sent) -> list[dict[str, Any]]:
    """The chunks that complete a stream, given what was `sent`; without the usage. From nothing: all."""
    head = {name: value for name, value in answer.items() if name not in _NOT_IN_CHUNKS}
    kind = answer.get("object", "")
    head["object"] = _CHUNK_OBJECTS.get(kind, kind)
    if sent.answer_id is not None:
        head["id"] = sent.answer_id
    events = []
    for position, choice in enumerate(answer.get("choices") or ()):
        index = choice.get("index", position)
        for chunk in _remaining_choice(choice, index, sent.choice(index)):
            events.append({**head, "choices": [chunk]})
            sent.add(events[-1])
    return events


def usage_event(answer: Json, usage: Json, sent: Sent) -> dict[str, Any]:
    """The last chunk of a stream with `include_usage`: no choices."""
    head = {name: value for name, value in answer.items() if name not in _NOT_IN_CHUNKS}
    kind = answer.get("object", "chat.completion")
    if sent.answer_id is not None:
        head["id"] = sent.answer_id
    return {**head, "object": _CHUNK_OBJECTS.get(kind, kind), "choices": [], "usage": dict(usage)}


def _remaining_choice(choice: Json, index: int, sent: _SentChoice) -> list[dict[str, Any]]:
    logprobs = sent.rest("logprobs", choice.get("logprobs") or {})
    piece: dict[str, Any] = {"index": index, "finish_reason": None}
    if logprobs:
        piece["logprobs"] = logprobs
    message = choice.get("message")
    if message is None:
        piece["text"] = sent.rest("text", choice.get("text") or "") or ""
        fresh = bool(piece["text"] or logprobs)
    else:
        piece["delta"] = _delta(message, sent)
        fresh = bool(piece["delta"] or logprobs)
    chunks = [piece] if fresh else []
    if not sent.finished and choice.get("finish_reason"):
        last: dict[str, Any] = {"text": ""} if message is None else {"delta": {}}
        chunks.append({"index": index, **last, "finish_reason": choice["finish_reason"]})
    return chunks


def _delta(message: Json, sent: _SentChoice) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    for name, value in message.items():
        if name == "role":
            rest = None if sent.begun else value
        elif name == "tool_calls":
            rest = _tool_calls(value or (), sent)
        else:
            rest = sent.rest(name, value)
        if rest is not None:
            delta[name] = rest
    return delta


def _tool_calls(calls: Any, sent: _SentChoice) -> list[dict[str, Any]] | None:
    rests = []
    for position, call in enumerate(calls):
        index = call.get("index", position)
        rest = sent.rest(f"tool_calls.{index}", {k: v for k, v in call.items() if k != "index"})
        if rest:
            rests.append({"index": index, **rest})
    return rests or None
