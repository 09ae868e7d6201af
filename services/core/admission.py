"""What a request body must be before it may go on the bus: known fields checked, unknown ones passed through.

Ranges are those of OpenAI's API reference where it gives them as numbers. A body that passes is never
rewritten: it travels as the bytes that the client sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from services.core.embedding_form import check_input
from services.core.field_checks import (
    Check,
    Refusal,
    an_object,
    deeper_than,
    expected,
    first_fault,
    flag,
    is_whole,
    missing,
    number,
    numbers_by_name,
    objects,
    one_of,
    text,
    text_or_texts,
    whole,
)
from services.core.usage import text_tokens

BodyKind = Literal["chat", "completion", "embedding"]
MOST_LEVELS = 128  # what is read can be written again: orjson reads 1,024 levels and writes 254
_IMAGE_TOKENS = 768  # of a picture at usual sizes; only ever used to rule pools out
_MESSAGE_TOKENS = 4  # role and separators
_IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})


@dataclass(frozen=True, slots=True)
class Admitted:
    """What the edge needs to know of a body. Token counts are estimates, for routing alone."""

    model: str
    stream: bool
    include_usage: bool
    features: frozenset[str]
    input_tokens: int
    output_tokens: int | None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _check_part(part: Mapping[str, Any], path: str) -> Refusal | None:
    kind = part.get("type")
    if not isinstance(kind, str):
        return expected(f"{path}.type", "a string")
    if kind == "text" and not isinstance(part.get("text"), str):
        return expected(f"{path}.text", "a string")
    if kind == "image_url":
        image = part.get("image_url")
        if not isinstance(image, dict) or not isinstance(image.get("url"), str):
            return expected(f"{path}.image_url", "an object with the string url")
    return None


_PARTS = objects(_check_part, least=1)


def _check_tool_call(call: Mapping[str, Any], path: str) -> Refusal | None:
    return text()(call.get("id"), f"{path}.id") or _check_tool(call, path)


def _check_tool(tool: Mapping[str, Any], path: str) -> Refusal | None:
    kind = tool.get("type")
    if not isinstance(kind, str):
        return expected(f"{path}.type", "a string")
    if kind == "function":
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return expected(f"{path}.function", "an object with the string name")
    return None


_TOOL_CALLS = objects(_check_tool_call, least=1)
_ROLE = one_of("developer", "system", "user", "assistant", "tool", "function")


def _check_message(message: Mapping[str, Any], path: str) -> Refusal | None:
    role = message.get("role")
    fault = _ROLE(role, f"{path}.role")
    if fault is not None:
        return fault
    calls = message.get("tool_calls")
    if calls is not None and (fault := _TOOL_CALLS(calls, f"{path}.tool_calls")):
        return fault
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        return expected(f"{path}.tool_call_id", "a string")
    return _check_content(message, path)


def _check_content(message: Mapping[str, Any], path: str) -> Refusal | None:
    content = message.get("content")
    if isinstance(content, str):
        return None
    if isinstance(content, list):
        return _PARTS(content, f"{path}.content")
    if content is None and message["role"] in ("assistant", "function"):
        return None
    return expected(f"{path}.content", "a string or a list of content parts")


def _check_choice(value: Any, path: str) -> Refusal | None:
    if isinstance(value, str):
        return one_of("none", "auto", "required")(value, path)
    return None if isinstance(value, dict) else expected(path, "none, auto, required or an object")


def _check_format(value: Any, path: str) -> Refusal | None:
    if not isinstance(value, dict):
        return expected(path, "an object")
    fault = text()(value.get("type"), f"{path}.type")
    if fault is None and value["type"] == "json_schema" and not isinstance(value.get("json_schema"), dict):
        return expected(f"{path}.json_schema", "an object")
    return fault


def _check_stream_options(value: Any, path: str) -> Refusal | None:
    return an_object(value, path) or first_fault(value, {"include_usage": flag}, f"{path}.")


def _check_metadata(value: Any, path: str) -> Refusal | None:
    if not isinstance(value, dict):
        return expected(path, "an object of strings")
    wrong = next((name for name, item in value.items() if not isinstance(item, str)), None)
    return None if wrong is None else expected(f"{path}.{wrong}", "a string")


def _check_prompt(value: Any, path: str) -> Refusal | None:
    if isinstance(value, str):
        return None
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, list):
            good = all(isinstance(item, list) and all(map(is_whole, item)) for item in value)
        else:
            good = all(isinstance(item, str) for item in value) or all(map(is_whole, value))
        if good:
            return None
    return expected(path, "a string, a list of strings, or one or more lists of tokens")


_SHARED: dict[str, Check] = {
    "model": text(256, shortest=1),
    "stream": flag,
    "stream_options": _check_stream_options,
    "n": whole(1, 128),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "max_tokens": whole(1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": numbers_by_name(-100, 100),
    "seed": whole(-(2**63), 2**63 - 1),
    "stop": text_or_texts,
    "user": text(),
    "metadata": _check_metadata,
}
_CHAT: dict[str, Check] = _SHARED | {
    "messages": objects(_check_message, least=1),
    "max_completion_tokens": whole(1),
    "logprobs": flag,
    "top_logprobs": whole(0, 20),
    "tools": objects(_check_tool),
    "tool_choice": _check_choice,
    "parallel_tool_calls": flag,
    "functions": objects(lambda value, path: text()(value.get("name"), f"{path}.name")),
    "response_format": _check_format,
}
_COMPLETION: dict[str, Check] = _SHARED | {
    "prompt": _check_prompt,
    "logprobs": whole(0, 5),
    "best_of": whole(1, 20),
    "echo": flag,
    "suffix": text(),
}
_EMBEDDING: dict[str, Check] = {
    "model": _SHARED["model"],
    "input": check_input,
    "encoding_format": one_of("float", "base64"),
    "dimensions": whole(1),
    "stream": lambda value, path: None if value is False else expected(path, "false: nothing is streamed"),
    "user": text(),
    "metadata": _check_metadata,
}
_FIELDS: Mapping[BodyKind, Mapping[str, Check]] = {
    "chat": _CHAT,
    "completion": _COMPLETION,
    "embedding": _EMBEDDING,
}
_REQUIRED: Mapping[BodyKind, tuple[str, str]] = {
    "chat": ("messages", "a list of messages"),
    "completion": ("prompt", "a string or a list"),
    "embedding": ("input", "a string or a list"),
}


def admit(kind: BodyKind, body: Any) -> Admitted | Refusal:
    """What a parsed body asks for, or the first thing that is wrong with it."""
    if not isinstance(body, dict):
        return Refusal("The request body must be a JSON object.", None, "invalid_body")
    if deeper_than(MOST_LEVELS, body):
        return Refusal(f"The request body is nested in more than {MOST_LEVELS} levels.", None, "invalid_body")
    content, what = _REQUIRED[kind]
    for name, shape in (("model", "a string"), (content, what)):
        if body.get(name) is None:
            return missing(name, shape)
    fault = first_fault(body, _FIELDS[kind])
    if fault is not None:
        return fault
    stream, options = bool(body.get("stream")), body.get("stream_options")
    if options is not None and not stream:
        return Refusal("'stream_options' is only allowed where 'stream' is true.", "stream_options")
    return Admitted(
        model=body["model"],
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        features=_features(body),
        input_tokens=_input_tokens(kind, body),
        output_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        metadata=body.get("metadata") or {},
    )


def _features(body: Mapping[str, Any]) -> frozenset[str]:
    needed = []
    if body.get("tools") or body.get("functions"):
        needed.append("tools")
    if (body.get("response_format") or {}).get("type") == "json_schema":
        needed.append("json_schema")
    if any(_has_image(message) for message in body.get("messages") or ()):
        needed.append("vision")
    return frozenset(needed)


def _has_image(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part["type"] in _IMAGE_PARTS for part in content)


def _input_tokens(kind: BodyKind, body: Mapping[str, Any]) -> int:
    if kind == "completion":
        return _prompt_tokens(body["prompt"])
    if kind == "embedding":
        return _prompt_tokens(body["input"])
    tools = _texts(body.get("tools") or body.get("functions") or ())
    return tools + sum(_MESSAGE_TOKENS + _content_tokens(m.get("content")) for m in body["messages"])


def _content_tokens(content: Any) -> int:
    if isinstance(content, str):
        return text_tokens(content)
    return sum(
        _IMAGE_TOKENS if part["type"] in _IMAGE_PARTS else text_tokens(str(part.get("text") or ""))
        for part in content or ()
    )


def _prompt_tokens(prompt: Any) -> int:
    """The longest of several prompts: each is a sequence of its own."""
    if isinstance(prompt, str):
        return text_tokens(prompt)
    if is_whole(prompt[0]):
        return len(prompt)
    return max(text_tokens(item) if isinstance(item, str) else len(item) for item in prompt)


def _texts(value: Any) -> int:
    """Tokens of all strings within a JSON value, keys included."""
    if isinstance(value, str):
        return text_tokens(value)
    if isinstance(value, dict):
        return sum(text_tokens(name) + _texts(item) for name, item in value.items())
    return sum(map(_texts, value)) if isinstance(value, (list, tuple)) else 0
