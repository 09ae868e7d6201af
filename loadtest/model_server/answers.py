"""The content of an answer as a row of deltas, and the JSON that carries it, whole or streamed.

Both forms are made from the same deltas, so they carry the same text, calls and usage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from loadtest.model_server import words
from loadtest.model_server.calls import Call
from loadtest.model_server.logprobs import chat_logprobs, text_logprobs
from loadtest.model_server.script import ScriptedCall
from loadtest.model_server.settings import ServerSettings

_ARGUMENT_CHARACTERS = 6  # of a tool call's arguments in one delta


class Delta(NamedTuple):
    """One content chunk of a choice: text, or a step of tool call number `call`, its first if `opens`."""

    choice: int
    text: str
    tokens: int
    call: int | None = None
    opens: ScriptedCall | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    id: str
    created_s: int
    model: str
    call: Call
    deltas: tuple[Delta, ...]
    finishes: tuple[str | None, ...]

    @property
    def tokens_out(self) -> int:
        return sum(delta.tokens for delta in self.deltas)


def compose(call: Call, settings: ServerSettings) -> Answer:
    """Decides the whole content before anything is sent; `deltas` are in the order of sending."""
    choices = call.n * len(call.prompts)
    rows: list[list[Delta]] = []
    finishes: list[str | None] = []
    for choice in range(choices):
        pieces, cut_off = _pieces(call, choice, settings)
        row = [Delta(choice, piece.text, piece.tokens) for piece in pieces]
        usual = "length" if cut_off else "stop"
        if call.behaviour.tool_calls:
            row.extend(_call_deltas(choice, call.behaviour.tool_calls))
            usual = "tool_calls"
        rows.append(row)
        finishes.append(call.behaviour.finish_or(usual))
    deltas = rows[0]
    if choices > 1:
        deltas = [delta for step in zip_longest(*rows) for delta in step if delta is not None]
    prefix = "chatcmpl" if call.kind == "chat" else "cmpl"
    return Answer(
        id=f"{prefix}-{os.urandom(12).hex()}",
        created_s=int(time.time()),
        model=settings.model,
        call=call,
        deltas=tuple(deltas),
        finishes=tuple(finishes),
    )


def _pieces(call: Call, choice: int, settings: ServerSettings) -> tuple[tuple[words.Piece, ...], bool]:
    """The text of a choice in pieces, and whether max_tokens cut it."""
    script = call.behaviour
    text = script.text
    silent = bool(script.tool_calls) or (script.failed_terminal and script.chunks is None)
    if script.empty or (text is None and silent):
        return (), False
    if text is None:
        prompt = call.prompts[choice // call.n]
        pieces = words.written(
            prompt, choice % call.n, settings.seed, script.chunks or settings.chunks, settings.chunk_tokens
        )
    else:
        pieces = words.cut(text, script.chunks, settings.chunk_tokens)
    if script.drip_s is not None:
        pieces = words.characters("".join(piece.text for piece in pieces))
    if call.max_tokens is None:
        return pieces, False
    kept = words.limited(pieces, call.max_tokens)
    return kept, kept != pieces


def _call_deltas(choice: int, calls: tuple[ScriptedCall, ...]) -> Iterable[Delta]:
    """Parallel calls open one after the other, then their arguments come interleaved."""
    for index, scripted in enumerate(calls):
        yield Delta(choice, "", 1, index, scripted)
    longest = max(len(scripted.arguments) for scripted in calls)
    for at in range(0, longest, _ARGUMENT_CHARACTERS):
        for index, scripted in enumerate(calls):
            if part := scripted.arguments[at : at + _ARGUMENT_CHARACTERS]:
                yield Delta(choice, part, 1, index)


def usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    total = tokens_in + tokens_out
    return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total}


def whole(answer: Answer) -> dict[str, Any]:
    """A chat.completion or text_completion; `usage` follows the script."""
    chat = answer.call.kind == "chat"
    rows: list[list[Delta]] = [[] for _ in answer.finishes]
    for delta in answer.deltas:
        rows[delta.choice].append(delta)
    choice_of = _whole_chat if chat else _whole_text
    choices = [choice_of(answer, index, row) for index, row in enumerate(rows)]
    body = _envelope(answer, "chat.completion" if chat else "text_completion", choices)
    where = answer.call.behaviour.usage_where
    if where == "zero":
        body["usage"] = usage(0, 0)
    elif where != "none":
        body["usage"] = usage(answer.call.tokens_in, answer.tokens_out)
    return body


def _whole_chat(answer: Answer, index: int, row: list[Delta]) -> dict[str, Any]:
    text = "".join(delta.text for delta in row if delta.call is None)
    scripted = answer.call.behaviour.tool_calls
    content = None if scripted and not text else text
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if scripted:
        message["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
            for each in scripted
        ]
    alternatives = answer.call.logprobs
    logprobs = None if alternatives is None else chat_logprobs(text, alternatives)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.finishes[index]}


def _whole_text(answer: Answer, index: int, row: list[Delta]) -> dict[str, Any]:
    text = "".join(delta.text for delta in row)
    alternatives = answer.call.logprobs
    logprobs = None if alternatives is None else text_logprobs(text, alternatives)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": answer.finishes[index]}


def streamed(answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """One chunk of the stream, without usage."""
    chat = answer.call.kind == "chat"
    return _envelope(answer, "chat.completion.chunk" if chat else "text_completion", choices)


def chunk_choice(answer: Answer, delta: Delta) -> dict[str, Any]:
    alternatives = answer.call.logprobs
    if answer.call.kind == "text":
        logprobs = None if alternatives is None else text_logprobs(delta.text, alternatives)
        return {"index": delta.choice, "text": delta.text, "logprobs": logprobs, "finish_reason": None}
    logprobs = None
    if alternatives is not None and delta.call is None:
        logprobs = chat_logprobs(delta.text, alternatives)
    return {"index": delta.choice, "delta": _delta_body(delta), "logprobs": logprobs, "finish_reason": None}


def _delta_body(delta: Delta) -> dict[str, Any]:
    if delta.call is None:
        return {"content": delta.text}
    if delta.opens is None:
        return {"tool_calls": [{"index": delta.call, "function": {"arguments": delta.text}}]}
    function = {"name": delta.opens.name, "arguments": ""}
    opening = {"index": delta.call, "id": delta.opens.id, "type": "function", "function": function}
    return {"tool_calls": [opening]}


def finish_choice(answer: Answer, index: int) -> dict[str, Any]:
    content: dict[str, Any] = {"delta": {}} if answer.call.kind == "chat" else {"text": ""}
    return {"index": index, **content, "logprobs": None, "finish_reason": answer.finishes[index]}


def _envelope(answer: Answer, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": kind,
        "created": answer.created_s,
        "model": answer.model,
        "system_fingerprint": "model-server",
        "choices": choices,
    }


def embeddings(call: Call, settings: ServerSettings) -> dict[str, Any]:
    size = call.dimensions or settings.embedding_dimensions
    vectors = [words.vector(text, size, settings.seed) for text in call.prompts]
    data = [
        {"object": "embedding", "index": index, "embedding": words.packed(vector) if call.packed else vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = {"prompt_tokens": call.tokens_in, "total_tokens": call.tokens_in}
    return {"object": "list", "data": data, "model": settings.model, "usage": tokens}


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


FAILURE = error_body("the engine failed (scripted)", "server_error", "engine_failed")
