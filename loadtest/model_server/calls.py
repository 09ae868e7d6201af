"""What a body asks for, as far as this server cares; every other field is accepted and ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from loadtest.model_server import words
from loadtest.model_server.script import PLAIN, Behaviour

Kind = Literal["chat", "text", "embedding"]


class CallError(ValueError):
    """The body is refused with a 400; `param` is the field at fault, if one is."""

    def __init__(self, problem: str, param: str | None = None) -> None:
        super().__init__(problem)
        self.param = param


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `prompts` has one text, or several where the API takes a list; `max_tokens` is per choice.

    `logprobs` is None if none are asked for, else how many alternatives each token shall have.
    """

    kind: Kind
    prompts: tuple[str, ...]
    behaviour: Behaviour = PLAIN
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    max_tokens: int | None = None
    logprobs: int | None = None
    dimensions: int | None = None
    packed: bool = False

    @property
    def tokens_in(self) -> int:
        return sum(map(words.count, self.prompts))


def decoded(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises CallError."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise CallError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CallError("the body must be an object")
    return fields


def call_of(kind: Kind, fields: dict[str, Any], behaviour: Behaviour) -> Call:
    """Raises CallError where a field that this server uses has a wrong type or range."""
    if kind == "embedding":
        return Call(
            kind=kind,
            prompts=_texts(fields, "input"),
            behaviour=behaviour,
            dimensions=_whole_number(fields, "dimensions", least=1),
            packed=fields.get("encoding_format") == "base64",
        )
    options = fields.get("stream_options")
    newer = _whole_number(fields, "max_completion_tokens", least=1)
    return Call(
        kind=kind,
        prompts=(_conversation(fields),) if kind == "chat" else _texts(fields, "prompt"),
        behaviour=behaviour,
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        n=_whole_number(fields, "n", least=1) or 1,
        max_tokens=_whole_number(fields, "max_tokens", least=1) if newer is None else newer,
        logprobs=_logprobs(kind, fields),
    )


def _whole_number(fields: dict[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CallError(f"{name} must be a whole number from {least} on", name)
    return value


def _logprobs(kind: Kind, fields: dict[str, Any]) -> int | None:
    if kind == "text":
        return _whole_number(fields, "logprobs", least=0)
    if fields.get("logprobs") is not True:
        return None
    return _whole_number(fields, "top_logprobs", least=0) or 0


def _conversation(fields: dict[str, Any]) -> str:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise CallError("messages must be a list with at least one message", "messages")
    parts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            parts.extend(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return "\n".join(parts)


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    """A text, a list of texts, a list of token numbers, or a list of such lists."""
    value = fields.get(name)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise CallError(f"{name} must be a text or a list", name)
    if isinstance(value[0], int):
        return (" ".join(map(str, value)),)
    return tuple(each if isinstance(each, str) else " ".join(map(str, each)) for each in value)
