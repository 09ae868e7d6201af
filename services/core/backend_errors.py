"""What a backend's refusal means: status, body or error event to a Failure that is fit for the caller.

Law: the backend's own words are shown only for what the caller can mend (bad request, too long), and never
with anything in them that looks like a key. Every other kind has words of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.core.retry import parse_retry_after

MAX_SHOWN = 600  # characters of a backend's message
_KEYS = re.compile(r"(?i)\b(?:sk|pk|hf|gsk|xai|key)[-_][A-Za-z0-9_\-]{6,}|bearer\s+\S+")
_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "string_above_max_length",
    }
)
_OVERFLOW_WORDS = re.compile(  # vLLM, TGI and Ollama say it in words alone
    r"(?i)maximum context length|context (?:length|size|window)|prompt is too long|too many (?:input )?tokens"
    r"|too large to process|inputs? (?:tokens? )?\+ ?`?max_new_tokens"
)
_UNPAID = re.compile(r"(?i)credit balance is too low")  # Anthropic: an invalid request, and it is our bill
_MILLISECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_BY_STATUS = {
    401: FailureKind.KEY_REFUSED,
    402: FailureKind.KEY_REFUSED,
    403: FailureKind.KEY_REFUSED,
    404: FailureKind.NOT_FOUND,
    405: FailureKind.NOT_FOUND,
    408: FailureKind.SERVER_ERROR,
    409: FailureKind.SERVER_ERROR,
    413: FailureKind.TOO_LONG,
    425: FailureKind.SERVER_ERROR,
    429: FailureKind.RATE_LIMITED,
    503: FailureKind.OVERLOADED,
    529: FailureKind.OVERLOADED,
}
_BY_TYPE = (
    ("rate_limit", FailureKind.RATE_LIMITED),
    ("overloaded", FailureKind.OVERLOADED),
    ("unavailable", FailureKind.OVERLOADED),
    ("authentication", FailureKind.KEY_REFUSED),
    ("permission", FailureKind.KEY_REFUSED),
    ("not_found", FailureKind.NOT_FOUND),
    ("request_too_large", FailureKind.TOO_LONG),
    ("billing", FailureKind.KEY_REFUSED),
    ("invalid_request", FailureKind.BAD_REQUEST),
    ("badrequest", FailureKind.BAD_REQUEST),
)
_WORDS = {
    FailureKind.KEY_REFUSED: "the backend refused this fleet's credentials",
    FailureKind.NOT_FOUND: "the backend does not know the model or the path that it is asked for",
    FailureKind.RATE_LIMITED: "the backend limits the rate of requests",
    FailureKind.OVERLOADED: "the backend is overloaded",
    FailureKind.SERVER_ERROR: "the backend failed",
    FailureKind.BAD_ANSWER: "the backend sent something that is not an answer",
    FailureKind.BAD_REQUEST: "the backend refused the request",
    FailureKind.TOO_LONG: "the request does not fit the model's context",
}
# llama.cpp and Ollama say of an embedding's input that does not fit that they failed (500).
_MAY_OVERFLOW = frozenset({FailureKind.BAD_REQUEST, FailureKind.SERVER_ERROR})
_SHOWN = frozenset({FailureKind.BAD_REQUEST, FailureKind.TOO_LONG})


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to leave the backend alone, as its headers say it: `retry-after-ms`, the finer one that OpenAI
    and Azure send, before `retry-after`."""

    retry_after: str | None = None
    retry_after_ms: str | None = None

    def seconds(self, now_s: float) -> float | None:
        """`now_s` is Unix time, for dates."""
        if self.retry_after_ms is not None and _MILLISECONDS.fullmatch(self.retry_after_ms.strip()):
            return float(self.retry_after_ms) / 1000
        return parse_retry_after(self.retry_after, now_s) if self.retry_after else None


def of_response(
    status: int, body: bytes, waits: Waits, now_s: float, secrets: tuple[str, ...] = ()
) -> Failure:
    """The failure that a response with an error status means. `now_s` is Unix time, for Retry-After dates."""
    said = _error_in(_parsed(body))
    kind = _kind_of_status(status)
    kind = _finer(kind, said)
    return _failure(kind, said, status, waits.seconds(now_s), secrets)


def of_event(event: Mapping[str, Any], secrets: tuple[str, ...] = ()) -> Failure:
    """The failure that an error object in an answer with status 200 means."""
    said = _error_in(event)
    status = next((value for name in ("status", "code") if (value := _status(said.get(name)))), None)
    kind = FailureKind.SERVER_ERROR if status is None else _kind_of_status(status)
    if status is None:
        name = f"{said.get('type')} {said.get('code')}".lower()
        kind = next((kind for part, kind in _BY_TYPE if part in name), kind)
    kind = _finer(kind, said)
    return _failure(kind, said, status, None, secrets)


def is_error(event: Mapping[str, Any]) -> bool:
    """Whether an object of a stream, or a whole answer, says that the backend failed."""
    return bool(event.get("error")) or event.get("object") == "error"


def without_keys(text: str, secrets: tuple[str, ...] = ()) -> str:
    """The text with known secrets, and what looks like a key, blotted out; cut to what is shown."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _KEYS.sub("***", text)[:MAX_SHOWN]


def _kind_of_status(status: int) -> FailureKind:
    known = _BY_STATUS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return FailureKind.SERVER_ERROR
    return FailureKind.BAD_REQUEST if status >= 400 else FailureKind.BAD_ANSWER


def _finer(kind: FailureKind, said: Mapping[str, Any]) -> FailureKind:
    """What servers call a bad request and the caller cannot mend, or can only by saying less."""
    message = said.get("message")
    if kind is FailureKind.BAD_REQUEST and isinstance(message, str) and _UNPAID.search(message):
        return FailureKind.KEY_REFUSED
    return FailureKind.TOO_LONG if kind in _MAY_OVERFLOW and _overflows(said) else kind


def _status(value: object) -> int | None:
    """An HTTP status, as a number or, as Azure and vLLM say it too, in digits."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value < 600 else None


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _error_in(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error object in the shapes that servers use: OpenAI, llama.cpp, vLLM, TGI, Ollama, FastAPI."""
    error = body.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error, "type": body.get("error_type")}
    detail = body.get("detail")
    if isinstance(detail, str):
        return {"message": detail}
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = detail[0].get("loc")  # FastAPI's: ["body", "messages", 0, "role"]
        where = ".".join(map(str, place[1:])) if isinstance(place, list) else None
        return {"message": detail[0].get("msg"), "param": where}
    return body


def _overflows(said: Mapping[str, Any]) -> bool:
    if said.get("code") in _OVERFLOW_CODES or said.get("type") in _OVERFLOW_CODES:
        return True
    message = said.get("message")
    return isinstance(message, str) and _OVERFLOW_WORDS.search(message) is not None


def _failure(
    kind: FailureKind,
    said: Mapping[str, Any],
    status: int | None,
    retry_after_s: float | None,
    secrets: tuple[str, ...],
) -> Failure:
    message, code, param = _WORDS[kind], None, None
    if kind in _SHOWN:
        message = _shown(said.get("message"), secrets) or message
        code, param = _shown(said.get("code"), secrets), _shown(said.get("param"), secrets)
        if kind is FailureKind.TOO_LONG:
            code = "context_length_exceeded"
    elif status is not None:
        message = f"{message} (HTTP {status})"
    return Failure(
        kind=kind, message=message, status=status, code=code, param=param, retry_after_s=retry_after_s
    )


def _shown(value: object, secrets: tuple[str, ...]) -> str | None:
    return without_keys(value, secrets) if isinstance(value, str) and value else None
