"""A backend's chunk in the one form that clients know, whatever dialect its server speaks.

Law, for every choice of a stream: one role, in its first delta; one finish reason, in OpenAI's words; a tool
call's id, type and name once and its index always; nothing that says nothing. What a dialect adds beside that
passes, except the figures of its own that no client asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from schemas.messages import TaskKind
from services.core.answer_choice import dicts, index_of

# TGI's, llama.cpp's and Anthropic's words for what OpenAI's clients compare with.
_FINISHES = {
    "eos_token": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "end_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
# llama.cpp's speed, and its settings with the prompt in them; by the field with which a client asks for it.
_FIGURES = {"timings": "timings_per_token", "__verbose": "verbose"}
_USUAL = frozenset({"id", "object", "created", "model", "choices", "usage"})
_NO_EXTRA = frozenset({"index", "delta", "text", "finish_reason"})


class _Call:
    """What of a tool call has been said."""

    __slots__ = ("call_id", "named")

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.named = False


class _Choice:
    __slots__ = ("calls", "finished", "spoken")

    def __init__(self) -> None:
        self.calls: dict[int, _Call] = {}
        self.finished = False
        self.spoken = False


class ChunkForm:
    """Takes the chunks of one try in order. `body` is the client's own, `task_id` names calls without id."""

    __slots__ = ("_chat", "_choices", "_task_id", "_unasked")

    def __init__(self, kind: TaskKind, task_id: str, body: Mapping[str, Any]) -> None:
        self._chat = kind == "chat"
        self._task_id = task_id
        self._choices: dict[int, _Choice] = {}
        self._unasked = [name for name, asking in _FIGURES.items() if not body.get(asking)]

    def normal(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event, changed in place. Raises MalformedChunkError."""
        if not event.keys() <= _USUAL:
            for name in self._unasked:
                event.pop(name, None)
            event.pop("error", None)  # one that says something is no chunk: this is a null
        if not event.get("created"):
            event.pop("created", None)  # Azure's 0
        choices = event.get("choices")
        if choices and not self._is_plain(choices):
            event["choices"] = [choice for choice in dicts(choices, "choices") if self._says(choice)]
        return event

    def _is_plain(self, choices: Any) -> bool:
        """What nearly every chunk is: text of one choice, or its end. Made normal at once."""
        if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
            return False
        choice = choices[0]
        index, delta = choice.get("index"), choice.get("delta")
        if not self._chat or type(index) is not int or type(delta) is not dict:
            return False
        reason, held = choice.get("finish_reason", ""), self._choices.get(index)
        if reason is None:
            return self._is_text(choice, index, held)
        if held is None or not held.spoken or held.finished or delta or type(reason) is not str or not reason:
            return False
        choice["finish_reason"] = _FINISHES.get(reason, reason)
        held.finished = True
        return True

    def _is_text(self, choice: dict[str, Any], index: int, held: _Choice | None) -> bool:
        delta = choice["delta"]
        if len(delta) != 1 or not delta.get("content") or (held is not None and held.finished):
            return False
        if held is None:
            held = self._choices[index] = _Choice()
        if not held.spoken:
            held.spoken = True
            choice["delta"] = {"role": "assistant", **delta}
        return True

    def _says(self, choice: Any) -> bool:
        """Makes a choice normal; whether anything is left to be said of it."""
        index = choice["index"] = index_of(choice, 0, "choices[].index")
        held = self._choices.get(index)
        if held is None:
            held = self._choices[index] = _Choice()
        said = self._delta(choice, index, held) if self._chat else bool(choice.get("text"))
        reason = choice.get("finish_reason") or None
        if reason is not None and held.finished:
            reason = None
        choice["finish_reason"] = _FINISHES.get(reason, reason) if isinstance(reason, str) else reason
        held.finished = held.finished or reason is not None
        return said or reason is not None or any(choice[name] for name in choice.keys() - _NO_EXTRA)

    def _delta(self, choice: Any, index: int, held: _Choice) -> bool:
        """Whether the choice's delta carries anything."""
        delta = choice.get("delta")
        if delta is None:
            delta = _message(choice)
        if not isinstance(delta, dict):
            if delta is not None:
                return True  # refused with its path where the answer is put together
            delta = {}
        role = delta.pop("role", None)
        calls = delta.get("tool_calls")
        if calls:
            listed = dicts([calls] if isinstance(calls, dict) else calls, "delta.tool_calls")
            delta["tool_calls"] = [self._call(call, index, held) for call in listed]
        elif "tool_calls" in delta:
            del delta["tool_calls"]
        if not held.spoken:
            held.spoken = True
            delta = {"role": role or "assistant", **delta}
        choice["delta"] = delta
        return any(delta.values())

    def _call(self, part: Any, choice: int, held: _Choice) -> Any:
        """One step of a tool call: its index always, what names it once."""
        index = index_of(part, None, "delta.tool_calls[].index")
        if index is None:
            index = part["index"] = _index_of(part.get("id"), held.calls)
        call = held.calls.get(index)
        if call is None:
            given = part.get("id") or f"call_{self._task_id}_{choice}_{index}"
            call = held.calls[index] = _Call(given)
            part["id"] = given
            part["type"] = part.get("type") or "function"
        else:
            part.pop("id", None)
            part.pop("type", None)
        function = part.get("function")
        if isinstance(function, dict):
            _function(function, call)
        return part


def _message(choice: Any) -> Any:
    """The delta of a server that answers a stream with the whole message; its calls go by their place."""
    delta = choice.pop("message", None)
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    if isinstance(calls, list):
        for index, call in enumerate(calls):
            if isinstance(call, dict):
                call.setdefault("index", index)
    return delta


def _index_of(call_id: Any, calls: Mapping[int, _Call]) -> int:
    """For servers that leave the index out: a new id begins a call, no id goes on with the last."""
    last = max(calls, default=-1)
    if not call_id:
        return max(last, 0)
    return next((index for index, call in calls.items() if call.call_id == call_id), last + 1)


def _function(function: dict[str, Any], call: _Call) -> None:
    name = function.get("name")
    if call.named or not name:
        function.pop("name", None)
    else:
        call.named = True
    arguments = function.get("arguments")
    if isinstance(arguments, (dict, list)):  # TGI's, already decoded
        function["arguments"] = orjson.dumps(arguments).decode()
