"""What a Model Context Protocol server's words mean for a task of kind `tool`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.core import backend_errors, tool_task

# JSON-RPC 2.0's codes; those from -32000 on are what the SDK says of its own connection.
CONNECTION_CLOSED, REQUEST_TIMEOUT = -32000, -32001
_PARSE_ERROR, _INVALID_REQUEST, _METHOD_NOT_FOUND, _INVALID_PARAMS = -32700, -32600, -32601, -32602
_ERRORS: Mapping[int, tuple[FailureKind, str]] = {
    CONNECTION_CLOSED: (FailureKind.RESET, "the tool server went away before it answered"),
    REQUEST_TIMEOUT: (FailureKind.TOTAL_TIMEOUT, "the tool did not answer in time"),
    _PARSE_ERROR: (FailureKind.BAD_ANSWER, "the tool server's answer is not MCP"),
    _INVALID_REQUEST: (FailureKind.BAD_REQUEST, "the tool server refused the request"),
    _METHOD_NOT_FOUND: (FailureKind.NOT_FOUND, "the server at the pool's address has no tools"),
    _INVALID_PARAMS: (FailureKind.BAD_REQUEST, "the tool refused its arguments"),
}


def of_error(code: int, message: str, secrets: tuple[str, ...] = ()) -> Failure:
    """The failure that an error response means; a server's own words where the caller can mend it."""
    kind, words = _ERRORS.get(code, (FailureKind.SERVER_ERROR, "the tool server failed"))
    if code == _INVALID_PARAMS:
        words = backend_errors.without_keys(message.strip(), secrets) or words
    return Failure(kind=kind, message=words)


def of_result(
    blocks: Sequence[Mapping[str, Any]], structured: Any, is_error: bool, secrets: tuple[str, ...] = ()
) -> dict[str, Any] | Failure:
    """The answer of a call that ended: its structured content, else its text, else its blocks as they are.

    Text that is a JSON object or list becomes that; any other stays text.
    """
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    if is_error:
        return tool_task.failed("\n".join(texts), secrets)
    if structured is not None:
        return tool_task.answer_of(structured)
    if len(texts) < len(blocks):
        return tool_task.answer_of([dict(block) for block in blocks])
    return tool_task.answer_of(_read("\n".join(texts)))


def _read(text: str) -> Any:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            pass  # prose that begins with a bracket
    return text
