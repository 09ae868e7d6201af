"""Messages to bytes and back.

A record says what it is in two headers, `type` and `v` (its major version). Decoding has three ends: a
message; `Unknown`, for a type or major that this version does not know (kept as bytes, never dead-lettered);
`SchemaError`, for bytes that are not what they say, with the path of the fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from schemas.fleet_messages import FLEET_TYPES, FleetMessage
from schemas.headers import WireHeaders
from schemas.messages import (
    AttemptFailed,
    AttemptStarted,
    CancelTask,
    Message,
    ReplyChunk,
    RunTask,
    SubmitTask,
    TaskClosed,
    TaskFailed,
    TaskParked,
    TaskSucceeded,
)

M = TypeVar("M", bound=BaseModel)
MAJOR = 1
MESSAGE_TYPES: dict[str, type[Message]] = {
    message.__name__: message
    for message in (
        RunTask,
        SubmitTask,
        AttemptStarted,
        AttemptFailed,
        TaskParked,
        TaskSucceeded,
        TaskFailed,
        TaskClosed,
        CancelTask,
        ReplyChunk,
    )
}


class SchemaError(ValueError):
    """Bytes that are not the message they say they are; the text gives the path and what was expected."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type or major version that this version does not know."""

    type: str
    major: str


def _fields(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.__dict__
    raise TypeError(f"not a message part: {type(value).__name__}")


def encode(message: Message | FleetMessage) -> bytes:
    """The JSON of a message. Inline payloads may be `orjson.Fragment`: their bytes are copied unread."""
    return orjson.dumps(message.__dict__, default=_fields)


def message_headers(message: Message | FleetMessage, **more: str) -> WireHeaders:
    """The wire headers of a record that is not on a lane: `type`, `v` and what is given besides."""
    headers = [("type", type(message).__name__.encode()), ("v", b"1")]
    headers.extend((name, value.encode()) for name, value in more.items())
    return headers


def decode(headers: Mapping[str, str], value: bytes | None) -> Message | Unknown:
    """The message in a record's bytes. Raises SchemaError with the path of the fault."""
    return _decode(MESSAGE_TYPES, headers, value)


def decode_fleet(headers: Mapping[str, str], value: bytes | None) -> FleetMessage | Unknown:
    """As `decode`, of a record on `fleet`."""
    return _decode(FLEET_TYPES, headers, value)


def _decode(types: Mapping[str, type[M]], headers: Mapping[str, str], value: bytes | None) -> M | Unknown:
    name, major = headers.get("type", ""), headers.get("v", "")
    if not name:
        raise SchemaError("header type: missing, expected the name of a message")
    message_type = types.get(name)
    if message_type is None or major != str(MAJOR):
        return Unknown(name, major)
    return decode_as(message_type, value)


def decode_as(message_type: type[M], value: bytes | None) -> M:
    if value is None:
        raise SchemaError(f"{message_type.__name__}: no value, expected a JSON object")
    try:
        return message_type.model_validate(orjson.loads(value))
    except orjson.JSONDecodeError as fault:
        raise SchemaError(f"{message_type.__name__}: not JSON: {fault}") from None
    except ValidationError as fault:
        raise SchemaError(f"{message_type.__name__}.{describe(fault)}") from None


def describe(fault: ValidationError) -> str:
    """The first fault of a validation, as `path: what was expected` and never with the offending value."""
    first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"]) or "(whole)"
    return f"{path}: {first['msg']}"
