"""Tasks of kind `tool`: what their body must be, and what an answer of a function or a service means.

A body is `{"name": ..., "arguments": {...}}`, with `model` where a pool or a tool's model is meant; the
answer is `{"result": ...}`, any JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.core import backend_errors
from services.core.admission import MOST_LEVELS, Admitted
from services.core.backend_errors import Waits
from services.core.field_checks import (
    Check,
    Refusal,
    an_object,
    deeper_than,
    expected,
    first_fault,
    missing,
    text,
)
from services.core.fleet import BackendKind
from services.core.routing import AUTO

MOST_RESULT_BYTES = 16 * 1024 * 1024
_FIELDS: Mapping[str, Check] = {
    "model": text(256, shortest=1),
    "name": text(256, shortest=1),
    "arguments": an_object,
}


def admit_tool(body: Any) -> Admitted | Refusal:
    """What a parsed body asks for, or the first thing that is wrong with it. Without a model: `auto`."""
    if not isinstance(body, dict):
        return Refusal("The body of a tool task must be a JSON object.", None, "invalid_body")
    if deeper_than(MOST_LEVELS, body):
        return Refusal(f"The body is nested in more than {MOST_LEVELS} levels.", None, "invalid_body")
    unknown = next((name for name in body if name not in _FIELDS), None)
    if unknown is not None:
        return expected(str(unknown)[:64], "only model, name and arguments in the body of a tool task")
    fault = first_fault(body, _FIELDS)
    if fault is not None:
        return fault
    model = body.get("model") or AUTO
    return Admitted(model, False, False, frozenset(), input_tokens=0, output_tokens=None)


def tool_call(body: Mapping[str, Any], backend: BackendKind) -> bytes | Refusal:
    """The JSON for the backend; MCP tools are called by name, a function may have none."""
    name = body.get("name")
    if name is None and backend == "mcp":
        return missing("name", "the name of one of the server's tools")
    call = {"arguments": body.get("arguments") or {}}
    return orjson.dumps(call if name is None else {"name": name, **call})


def answer_of(result: Any) -> dict[str, Any] | Failure:
    """The task's answer, or why it cannot travel: too deep, too large, numbers beyond JSON's usual."""
    answer = {"result": result}
    if deeper_than(MOST_LEVELS, answer):
        return _bad(f"the tool's answer is nested in more than {MOST_LEVELS} levels")
    try:
        size = len(orjson.dumps(answer))
    except TypeError:  # lone surrogates, integers beyond 64 bits
        return _bad("the tool's answer cannot be written as JSON")
    if size > MOST_RESULT_BYTES:
        return _bad(f"the tool's answer is larger than {MOST_RESULT_BYTES} bytes")
    return answer


def answer_of_body(content_type: str, body: bytes) -> dict[str, Any] | Failure:
    """The answer that a body with a 2xx status is: JSON, or text as a string; nothing at all is null."""
    if not body.strip():
        return answer_of(None)
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        return _bad("the tool answered with a web page")
    try:
        return answer_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        pass  # it may be text
    if kind == "application/json" or kind.endswith("+json"):
        return _bad("the tool's answer says that it is JSON, and is not")
    if not (kind.startswith("text/") or kind == ""):
        return _bad("the tool's answer is neither JSON nor text")
    try:
        return answer_of(body.decode())
    except UnicodeDecodeError:
        return _bad("the tool's answer is no text in UTF-8")


def of_response(
    status: int, body: bytes, waits: Waits, now_s: float, secrets: tuple[str, ...] = ()
) -> Failure:
    """The failure that a response outside 2xx means: as a model server's, but with no context to fit."""
    failure = backend_errors.of_response(status, body, waits, now_s, secrets)
    if status == 413:
        words = "the arguments are larger than the tool takes"
        return failure.model_copy(update={"message": words, "code": None})
    if failure.kind is FailureKind.TOO_LONG:
        return failure.model_copy(update={"kind": FailureKind.BAD_REQUEST, "code": None})
    if failure.kind is FailureKind.NOT_FOUND:
        words = f"there is no tool at the pool's address (HTTP {status})"
        return failure.model_copy(update={"message": words})
    return failure


def failed(text_of_tool: str, secrets: tuple[str, ...] = ()) -> Failure:
    """The tool ran and says that it failed: its own word, bounded, without keys."""
    words = backend_errors.without_keys(text_of_tool.strip(), secrets)
    return Failure(kind=FailureKind.TOOL_ERROR, message=words or "the tool failed and does not say why")


def unknown_tool(name: str, known: list[str]) -> Failure:
    names = ", ".join(sorted(known)) or "none"
    message = f"There is no tool {name[:64]!r} here; expected one of {names}."
    return Failure(
        kind=FailureKind.BAD_REQUEST,
        message=message[: backend_errors.MAX_SHOWN],
        code="unknown_tool",
        param="name",
    )


def _bad(message: str) -> Failure:
    return Failure(kind=FailureKind.BAD_ANSWER, message=message)
