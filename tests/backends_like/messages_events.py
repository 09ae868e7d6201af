"""Answers in the shapes of Anthropic's Messages API, as its streaming reference records them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from loadtest.model_server.answers import Answer, Delta
from loadtest.model_server.script import Behaviour

CACHE_READ, CACHE_WRITTEN = 3, 2  # tokens, of every answer
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def in_blocks(answer: Answer) -> list[Delta]:
    """Text, then call after call: a block ends before the next one begins."""
    return sorted(answer.deltas, key=lambda delta: -1 if delta.call is None else delta.call)


def message_of(answer: Answer) -> dict[str, Any]:
    """The whole answer, unstreamed."""
    deltas = in_blocks(answer)
    text = "".join(delta.text for delta in deltas if delta.call is None)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in (delta.opens for delta in deltas if delta.opens is not None):
        given = orjson.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    usage = _input_usage(answer) | {"output_tokens": answer.tokens_out}
    return _head(answer) | {"content": blocks, "stop_reason": _stop(answer), "usage": usage}


class Stream:
    """The events of an answer, framed. `sent` pairs each piece with the content delta that it is, if any."""

    def __init__(self, answer: Answer, script: Behaviour) -> None:
        self._answer = answer
        self._line = b"\r\n" if script.crlf else b"\n"
        self._comments = script.comments
        self._done = not script.no_done

    def pieces(self) -> Iterator[tuple[bytes, Delta | None]]:
        start = _head(self._answer) | {
            "content": [],
            "stop_reason": None,
            "usage": _input_usage(self._answer) | {"output_tokens": 1},
        }
        yield self._event("message_start", message=start), None
        yield self._event("ping"), None
        block = _Blocks()
        for delta in in_blocks(self._answer):
            for name, fields in block.before(delta):
                yield self._event(name, **fields), None
            yield self._event("content_block_delta", index=block.index, delta=_delta(delta)), delta
        for name, fields in block.close():
            yield self._event(name, **fields), None
        usage = {"output_tokens": self._answer.tokens_out}
        yield (
            self._event(
                "message_delta",
                delta={"stop_reason": _stop(self._answer), "stop_sequence": None},
                usage=usage,
            ),
            None,
        )
        if self._done:
            yield self._event("message_stop"), None

    def error(self, kind: str, message: str) -> bytes:
        return self._event("error", error={"type": kind, "message": message})

    def torn(self) -> bytes:
        return self._framed("content_block_delta", b'{"type":"content_block_delta","index":0,"del')

    def _event(self, name: str, **fields: Any) -> bytes:
        return self._framed(name, orjson.dumps({"type": name, **fields}))

    def _framed(self, name: str, data: bytes) -> bytes:
        lines = [b"event: " + name.encode(), b"data: " + data, b"", b""]
        if self._comments:
            lines.insert(0, b": keep-alive")
        return self._line.join(lines)


class _Blocks:
    """Which content block is open, and what has to be said to open the next."""

    def __init__(self) -> None:
        self.index = -1
        self._open: tuple[str, int | None] | None = None

    def before(self, delta: Delta) -> Iterator[tuple[str, dict[str, Any]]]:
        wanted = ("text", None) if delta.call is None else ("tool_use", delta.call)
        if wanted == self._open:
            return
        yield from self.close()
        self.index += 1
        self._open = wanted
        if delta.opens is None:
            block: dict[str, Any] = {"type": "text", "text": ""}
        else:
            block = {"type": "tool_use", "id": delta.opens.id, "name": delta.opens.name, "input": {}}
        yield "content_block_start", {"index": self.index, "content_block": block}

    def close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._open is not None:
            yield "content_block_stop", {"index": self.index}
            self._open = None


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.call is None:
        return {"type": "text_delta", "text": delta.text}
    return {"type": "input_json_delta", "partial_json": delta.text}


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": "msg_01" + answer.id[-8:],
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "stop_sequence": None,
    }


def _input_usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.call.tokens_in,
        "cache_creation_input_tokens": CACHE_WRITTEN,
        "cache_read_input_tokens": CACHE_READ,
    }


def _stop(answer: Answer) -> str | None:
    finish = answer.finishes[0]
    return None if finish is None else _STOPS.get(finish, finish)
