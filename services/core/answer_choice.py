"""One choice of an answer, put together from the deltas of its stream.

String deltas, known and unknown, are joined; tool calls are keyed by index; lists of logprobs are
concatenated; of every other field the last value that is not null wins.
"""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

_CHOICE_FIELDS = frozenset({"index", "delta", "message", "text", "logprobs"})
_SET_IN_CALL = frozenset({"id", "type"})
_CONTENT_OBJECTS = frozenset({"tool_calls", "function_call", "audio", "images"})


class MalformedChunkError(ValueError):
    """A chunk whose shape is not that of a completion; the message names the path."""


class _Fields:
    """Strings joined, other values replaced."""

    __slots__ = ("strings", "values")

    def __init__(self) -> None:
        self.strings: dict[str, list[str]] = {}
        self.values: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        if isinstance(value, str):
            held = self.strings.get(name)
            if held is None:
                self.strings[name] = [value]
            else:
                held.append(value)
        else:
            last_wins(self.values, name, value)

    def whole(self) -> dict[str, Any]:
        return {**self.values, **{name: "".join(parts) for name, parts in self.strings.items()}}

    def byte_count(self) -> int:
        return sum(_utf8_bytes(parts) for parts in self.strings.values())


class _ToolCall:
    """One call: id, type and name are set, arguments (or a custom tool's input) joined."""

    __slots__ = ("_inner", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._inner: dict[str, _Fields] = {}

    @property
    def call_id(self) -> Any:
        return self._values.get("id")

    def add(self, part: Json) -> None:
        for name, value in part.items():
            if isinstance(value, dict):
                inner = self._inner.setdefault(name, _Fields())
                for key, piece in value.items():
                    _add_named(inner, key, piece)
            elif name != "index" and (value or name not in _SET_IN_CALL):
                last_wins(self._values, name, value)

    def whole(self) -> dict[str, Any]:
        inner = {name: fields.whole() for name, fields in self._inner.items()}
        return {"type": "function", **self._values, **inner}

    def byte_count(self) -> int:
        return sum(fields.byte_count() for fields in self._inner.values())


class ChoiceAssembly:
    __slots__ = (
        "_calls",
        "_extra",
        "_fields",
        "_function_call",
        "_logprobs",
        "_role",
        "_text",
        "finish_reason",
    )

    def __init__(self) -> None:
        self._role = "assistant"
        self._fields = _Fields()
        self._text: list[str] = []
        self._calls: dict[int, _ToolCall] = {}
        self._function_call: _Fields | None = None
        self._logprobs: dict[str, Any] | None = None
        self._extra: dict[str, Any] = {}
        self.finish_reason: str | None = None

    def add(self, choice: Json) -> None:
        for name, value in _delta_of(choice).items():
            if name == "role":
                self._role = value or self._role
            elif name == "tool_calls":
                self._add_calls(dicts(value, "delta.tool_calls"))
            elif name == "function_call" and isinstance(value, dict):
                self._function_call = self._function_call or _Fields()
                for key, piece in value.items():
                    _add_named(self._function_call, key, piece)
            else:
                self._fields.add(name, value)
        text = choice.get("text")
        if isinstance(text, str):
            self._text.append(text)
        if isinstance(choice.get("logprobs"), dict):
            self._add_logprobs(choice["logprobs"])
        self._finish(choice.get("finish_reason"))
        for name in choice.keys() - _CHOICE_FIELDS:
            last_wins(self._extra, name, choice[name])

    def add_text(self, delta: Json) -> bool:
        """Takes a delta that is nothing but more content; False where it is anything else."""
        content = delta.get("content") if len(delta) == 1 else None
        held = self._fields.strings.get("content")
        if type(content) is not str or not content or held is None:
            return False
        held.append(content)
        return True

    def _finish(self, reason: Any) -> None:
        if reason and not isinstance(reason, str):
            raise MalformedChunkError("choices[].finish_reason is not a string")
        self.finish_reason = reason or self.finish_reason

    def _add_calls(self, parts: list[Json]) -> None:
        for part in parts:
            index = index_of(part, None, "delta.tool_calls[].index")
            if index is None:
                index = self._index_of(part.get("id"))
            call = self._calls.get(index)
            if call is None:
                call = self._calls[index] = _ToolCall()
            call.add(part)

    def _index_of(self, call_id: Any) -> int:
        """For servers that leave the index out: a new id begins a call, no id goes on with the last."""
        last = max(self._calls, default=-1)
        if not call_id:
            return max(last, 0)
        return next((index for index, call in self._calls.items() if call.call_id == call_id), last + 1)

    def _add_logprobs(self, logprobs: Json) -> None:
        held = self._logprobs
        if held is None:
            held = self._logprobs = {}
        for name, value in logprobs.items():
            if isinstance(value, list) and isinstance(held.get(name), list):
                held[name] += value
            else:
                last_wins(held, name, list(value) if isinstance(value, list) else value)

    def content_bytes(self) -> int:
        inner = self._function_call.byte_count() if self._function_call is not None else 0
        calls = sum(call.byte_count() for call in self._calls.values())
        return self._fields.byte_count() + inner + calls + _utf8_bytes(self._text)

    def whole(self, index: int, chat: bool) -> dict[str, Any]:
        made = {"index": index, "logprobs": self._logprobs, "finish_reason": None, **self._extra}
        if chat:
            made["message"] = self._message()
        else:
            made["text"] = "".join(self._text)
        return made

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self._role, "content": None, **self._fields.whole()}
        if self._calls:
            message["tool_calls"] = [self._calls[index].whole() for index in sorted(self._calls)]
        if self._function_call is not None:
            message["function_call"] = self._function_call.whole()
        if not message["content"] and (self._calls or self._function_call is not None):
            message["content"] = None  # the empty string of a first frame, where the whole answer has null
        return message


def choice_has_content(choice: Json) -> bool:
    """Whether it carries an answer's substance, not only a role, a finish reason or empty strings."""
    if choice.get("text"):
        return True
    return any(
        value and name != "role" and (isinstance(value, str) or name in _CONTENT_OBJECTS)
        for name, value in _delta_of(choice).items()
    )


def _delta_of(choice: Json) -> Json:
    delta = choice.get("delta")
    if delta is None:
        delta = choice.get("message")  # a server that answers a stream with the whole message
    if delta is None:
        return {}
    if not isinstance(delta, dict):
        raise MalformedChunkError("choices[].delta is not an object")
    return delta


def dicts(value: Any, path: str) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MalformedChunkError(f"{path} is not a list of objects")
    return value


def index_of(item: Json, absent: Any, path: str) -> Any:
    index = item.get("index", absent)
    if index is None:
        return absent
    if not isinstance(index, int):
        raise MalformedChunkError(f"{path} is not an integer")
    return index


def _add_named(fields: _Fields, name: str, value: Any) -> None:
    """A name comes whole, once or on every chunk; all other strings come in pieces."""
    if name != "name":
        fields.add(name, value)
    elif value:
        fields.strings["name"] = [value]


def last_wins(held: dict[str, Any], name: str, value: Any) -> None:
    if value is not None or name not in held:
        held[name] = value


def _utf8_bytes(parts: list[str]) -> int:
    """A lone surrogate, which a JSON decoder may let through, is counted rather than refused."""
    return sum(len(part.encode("utf-8", "surrogatepass")) for part in parts)
