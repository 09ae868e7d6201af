"""The events of Anthropic's Messages API as the chunks of an OpenAI chat.

Usage: what went in is said once, by `message_start`; what came out by each `message_delta`, cumulatively.
`input_tokens` leaves out what was read from the cache or written to it: OpenAI's prompt_tokens count both,
and cached_tokens only what was read, for writing is not cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

Json = Mapping[str, Any]

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class MalformedEventError(ValueError):
    """An event, or an answer, that is not of the Messages API."""


class MessagesTranslator:
    """One stream. `ended` once message_stop came. Events of kinds that are not known change nothing."""

    __slots__ = ("_calls", "_open", "_usage", "ended")

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self._calls = 0
        self._open: dict[int, _Block] = {}
        self.ended = False

    def chunks(self, events: Iterable[Json]) -> list[dict[str, Any]]:
        """The chunks that the events make. Raises MalformedEventError."""
        made: list[dict[str, Any]] = []
        for event in events:
            if self.ended:
                break
            chunk = self._chunk(event)
            if chunk is not None:
                made.append(chunk)
        return made

    def _chunk(self, event: Json) -> dict[str, Any] | None:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._delta(_index(event), _object(event, "delta"))
        if kind == "content_block_start":
            return self._start(_index(event), _object(event, "content_block"))
        if kind == "content_block_stop":
            return self._stop(_index(event))
        if kind == "message_start":
            self._count(_object(event, "message").get("usage"))
            # Only what went in: until the end nobody knows what came out, and the assembly estimates that.
            return _chunk_of({"role": "assistant", "content": ""}, usage=_input(self._usage))
        if kind == "message_delta":
            return self._end(_object(event, "delta"), event.get("usage"))
        if kind == "message_stop":
            self.ended = True
        return None

    def _start(self, index: int, block: Json) -> dict[str, Any] | None:
        kind = block.get("type")
        if kind == "tool_use":
            call = self._calls
            self._calls += 1
            self._open[index] = _Block(call, block.get("input"))
            function = {"name": block.get("name"), "arguments": ""}
            return _call_chunk(call, function, id=block.get("id"), type="function")
        self._open[index] = _Block(None, None)
        text = block.get("text") if kind == "text" else None
        return _chunk_of({"content": text}) if text else None

    def _delta(self, index: int, delta: Json) -> dict[str, Any] | None:
        block = self._open.get(index)
        if block is None:
            raise MalformedEventError("a delta of a block that was not begun")
        kind = delta.get("type")
        if kind == "text_delta":
            return _chunk_of({"content": _text(delta, "text")})
        if kind == "thinking_delta":
            return _chunk_of({"reasoning_content": _text(delta, "thinking")})
        if kind != "input_json_delta" or block.call is None:
            return None  # signatures, citations, and the inputs of tools that the provider runs itself
        part = _text(delta, "partial_json")
        block.said = block.said or bool(part)
        return _call_chunk(block.call, {"arguments": part}) if part else None

    def _stop(self, index: int) -> dict[str, Any] | None:
        block = self._open.pop(index, None)
        if block is None or block.call is None or block.said:
            return None
        # A call without arguments: a client that parses them must find an object.
        return _call_chunk(block.call, {"arguments": _dumped(block.given)})

    def _end(self, delta: Json, usage: Any) -> dict[str, Any] | None:
        self._count(usage)
        reason = delta.get("stop_reason")
        if reason is None:
            return None
        return _chunk_of({}, _FINISH.get(reason, "stop"), usage_of(self._usage))

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._usage |= {name: value for name, value in usage.items() if value is not None}


class _Block:
    """`call`: the number of the tool call that it is, if it is one; `given`: its input as it began."""

    __slots__ = ("call", "given", "said")

    def __init__(self, call: int | None, given: Any) -> None:
        self.call, self.given, self.said = call, given, False


def whole_answer(message: Json) -> dict[str, Any]:
    """An unstreamed answer as an OpenAI one. Raises MalformedEventError."""
    blocks = message.get("content")
    if message.get("type") != "message" or not isinstance(blocks, list):
        raise MalformedEventError("not an answer of the Messages API")
    said: dict[str, Any] = {"role": "assistant", "content": _joined(blocks, "text")}
    if thought := _joined(blocks, "thinking"):
        said["reasoning_content"] = thought
    calls = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_use"]
    if calls:
        said["tool_calls"] = [_whole_call(block) for block in calls]
    finish = _FINISH.get(str(message.get("stop_reason")), "stop")
    usage = message.get("usage")
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": usage_of(usage) if isinstance(usage, dict) else None,
    }


def usage_of(told: Json) -> dict[str, Any]:
    """Anthropic's counts as OpenAI's; what it did not count is left out."""
    usage = _input(told)
    out = _count_of(told, "output_tokens")
    if out is None:
        return usage
    usage["completion_tokens"] = out
    if "prompt_tokens" in usage:
        usage["total_tokens"] = usage["prompt_tokens"] + out
    return usage


def _input(told: Json) -> dict[str, Any]:
    fresh = _count_of(told, "input_tokens")
    if fresh is None:
        return {}
    read = _count_of(told, "cache_read_input_tokens") or 0
    written = _count_of(told, "cache_creation_input_tokens") or 0
    details = {"cached_tokens": read, "cache_creation_tokens": written}
    return {"prompt_tokens": fresh + read + written, "prompt_tokens_details": details}


def _count_of(told: Json, name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _whole_call(block: Json) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": _dumped(block.get("input"))}
    return {"id": block.get("id"), "type": "function", "function": function}


def _joined(blocks: list[Any], kind: str) -> str | None:
    texts = [
        block[kind]
        for block in blocks
        if isinstance(block, dict) and block.get("type") == kind and isinstance(block.get(kind), str)
    ]
    return "".join(texts) if texts else None


def _dumped(given: Any) -> str:
    return orjson.dumps(given if isinstance(given, dict) else {}).decode()


def _chunk_of(
    delta: dict[str, Any], finish: str | None = None, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return chunk | {"usage": usage} if usage else chunk


def _call_chunk(call: int, function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return _chunk_of({"tool_calls": [{"index": call, **more, "function": function}]})


def _index(event: Json) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise MalformedEventError("a block without its index")
    return index


def _object(event: Json, name: str) -> Json:
    value = event.get(name)
    if not isinstance(value, dict):
        raise MalformedEventError(f"an event without its {name}")
    return value


def _text(delta: Json, name: str) -> str:
    value = delta.get(name)
    if not isinstance(value, str):
        raise MalformedEventError(f"a delta without its {name}")
    return value
