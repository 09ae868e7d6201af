"""The messages of an OpenAI chat as Anthropic's turns: what is said by whom, pictures, tool calls, results.

Anthropic keeps the system's words beside the turns, wants user and assistant to alternate, all results of one
round of tools in one user turn and before anything else in it, and no empty text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from services.core.field_checks import Refusal, expected

Block = dict[str, Any]
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,", re.IGNORECASE)
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class UntranslatableError(Exception):
    """A part of the request that cannot be said; `refusal` names it for the caller."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def system_and_turns(messages: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Block]]:
    """The system's texts, and the turns. Raises UntranslatableError."""
    system: list[str] = []
    turns: list[Block] = []
    for position, message in enumerate(messages):
        path = f"messages[{position}]"
        role = message["role"]
        if role in ("system", "developer"):
            system += [block["text"] for block in _said(message.get("content"), path)]
        elif role == "user":
            _add(turns, "user", _said(message.get("content"), path, pictures=True))
        elif role == "tool":
            _add(turns, "user", [_result(message, path)])
        elif role == "assistant":
            _add(turns, "assistant", [*_said(message.get("content"), path), *_calls(message, path)])
        else:
            raise UntranslatableError(
                expected(
                    f"{path}.role", "system, developer, user, assistant or tool (use tools, not functions)"
                )
            )
    if not turns:
        raise UntranslatableError(expected("messages", "at least one that is not the system's and not empty"))
    return system, turns


def _add(turns: list[Block], role: str, blocks: list[Block]) -> None:
    """To the last turn where it is of the same role; results of tools come before what the user says."""
    if not blocks:
        return
    if not turns or turns[-1]["role"] != role:
        turns.append({"role": role, "content": []})
    content = turns[-1]["content"]
    content += blocks
    if role == "user":
        content.sort(key=lambda block: block["type"] != "tool_result")


def _said(content: Any, path: str, *, pictures: bool = False) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [_text(content)] if content else []
    blocks = (
        _part(part, f"{path}.content[{position}]", pictures=pictures) for position, part in enumerate(content)
    )
    return [block for block in blocks if block is not None]


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _part(part: Mapping[str, Any], path: str, *, pictures: bool) -> Block | None:
    kind = part["type"]
    if kind in ("text", "refusal"):
        text = part.get(kind)
        return _text(text) if isinstance(text, str) and text else None
    if kind == "image_url" and pictures:
        return {"type": "image", "source": _source(part["image_url"]["url"], path)}
    what = "text or image_url" if pictures else "text"
    raise UntranslatableError(expected(f"{path}.type", f"{what} for this pool"))


def _source(url: str, path: str) -> Block:
    found = _DATA_URL.match(url)
    if found:
        return {"type": "base64", "media_type": found[1].lower(), "data": url[found.end() :]}
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    raise UntranslatableError(
        expected(f"{path}.image_url.url", "an http(s) URL or data:image/...;base64,... for this pool")
    )


def _calls(message: Mapping[str, Any], path: str) -> list[Block]:
    return [
        _call(call, f"{path}.tool_calls[{position}]")
        for position, call in enumerate(message.get("tool_calls") or ())
    ]


def _call(call: Mapping[str, Any], path: str) -> Block:
    if call["type"] != "function":
        raise UntranslatableError(expected(f"{path}.type", "function: this pool has no other tools"))
    function = call["function"]
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise UntranslatableError(expected(f"{path}.function.arguments", "a JSON object, as text"))
    return {"type": "tool_use", "id": _id(call["id"]), "name": function["name"], "input": arguments}


def _result(message: Mapping[str, Any], path: str) -> Block:
    result: Block = {"type": "tool_result", "tool_use_id": _id(message["tool_call_id"])}
    said = _said(message.get("content"), path, pictures=True)
    return result | {"content": said} if said else result


def _id(call_id: str) -> str:
    """The same for a call and its result; Anthropic takes no other characters."""
    return _NOT_IN_ID.sub("_", call_id)
