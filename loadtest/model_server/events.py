"""The server-sent events of one stream, with every way of framing and counting that a script can ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from loadtest.model_server import answers
from loadtest.model_server.answers import FAILURE, Answer, Delta


class Events:
    """The SSE events of one stream; keeps the count of tokens that `every_chunk` reports."""

    def __init__(self, answer: Answer) -> None:
        script = answer.call.behaviour
        self._answer = answer
        self._script = script
        asked = "own_chunk" if answer.call.include_usage else "none"
        self._where = script.usage_where or asked
        self._tokens_out = 0
        newline = b"\r\n" if script.crlf else b"\n"
        self._prefix = (b": keepalive" + newline * 2 if script.comments else b"") + b"data: "
        self._suffix = newline * 2
        # What is the same in every chunk is encoded once: a stream is mostly this.
        envelope = orjson.dumps(answers.streamed(answer, []))
        self._opened = self._prefix + envelope.removesuffix(b"[]}")

    def opening(self) -> Iterator[bytes]:
        """Role chunks, one per choice; completions have none."""
        if self._answer.call.kind == "text":
            return
        for index in range(len(self._answer.finishes)):
            delta = {"role": "assistant"}
            if not self._script.role_only_first:
                delta["content"] = ""
            yield self._event([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def content(self, delta: Delta) -> bytes:
        self._tokens_out += delta.tokens
        return self._event([answers.chunk_choice(self._answer, delta)])

    def torn(self, delta: Delta) -> bytes:
        """An event whose JSON stops half way."""
        whole = orjson.dumps(answers.streamed(self._answer, [answers.chunk_choice(self._answer, delta)]))
        return self._framed(whole[: len(whole) // 2])

    def closing(self) -> Iterator[bytes]:
        """Finish chunks, usage and [DONE], or the error of a failed terminal."""
        if self._script.failed_terminal:
            yield self._framed(orjson.dumps(FAILURE))
        else:
            yield from self._finishes()
        if not self._script.no_done:
            yield self._framed(b"[DONE]")

    def _finishes(self) -> Iterator[bytes]:
        last = len(self._answer.finishes) - 1
        for index in range(last + 1):
            carries = self._where == "last_with_choices" and index == last
            event = self._event([answers.finish_choice(self._answer, index)], final_usage=carries)
            yield event
            if self._script.double_finish:
                yield event
        if self._where in ("own_chunk", "zero"):
            yield self._event([], final_usage=True)

    def _event(self, choices: list[dict[str, Any]], final_usage: bool = False) -> bytes:
        usage = b""
        if final_usage or self._where == "every_chunk":
            usage = b',"usage":' + orjson.dumps(self._usage())
        elif self._where == "own_chunk":
            usage = b',"usage":null'  # OpenAI's own servers announce it so
        return b"%b%b%b}%b" % (self._opened, orjson.dumps(choices), usage, self._suffix)

    def _usage(self) -> dict[str, int]:
        if self._where == "zero":
            return answers.usage(0, 0)
        return answers.usage(self._answer.call.tokens_in, self._tokens_out)

    def _framed(self, data: bytes) -> bytes:
        return self._prefix + data + self._suffix
