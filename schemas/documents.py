"""The contract as documents: a JSON Schema per message and one AsyncAPI 3 document, made from the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from schemas.codec import MAJOR, MESSAGE_TYPES
from schemas.fleet_messages import FLEET_TYPES
from schemas.topics import TopicNames

LANE = "tasks.{capability}.{priority}"
CARRIES: Mapping[str, tuple[str, ...]] = {
    LANE: ("RunTask",),
    "submissions": ("SubmitTask",),
    "results": ("AttemptStarted", "AttemptFailed", "TaskParked", "TaskSucceeded", "TaskFailed", "TaskClosed"),
    "replies": ("ReplyChunk",),
    "control": ("CancelTask",),
    "fleet": ("WorkerBeat", "SlotClaim", "PoolOrder"),
}
PURPOSE: Mapping[str, str] = {
    LANE: "One lane for each pool and priority; its record holds a task until another record does.",
    "submissions": "Tasks from producers that do not route for themselves.",
    "results": "The one log that decides: a task's outcome is its first terminal record here.",
    "replies": "Token chunks for a waiting client; repairable from the terminal record.",
    "control": "Cancels, kept as tombstones until the task's deadline.",
    "fleet": "What workers say of themselves and operators of pools: the newest of each key.",
}
HEADERS: Mapping[str, str] = {
    "type": "name of the message",
    "v": "major version of the message",
    "request_id": "follows one call at the edge everywhere",
    "deadline": "absolute, milliseconds since the epoch",
    "result_partition": "partition of `results` that decides about the task",
    "reply_partition": "partition of `replies` that its client reads",
    "tries": "tries charged to the task",
    "hops": "moves between lanes",
    "not_before": "earliest start, milliseconds since the epoch",
    "spent_usd": "money spent on earlier tries",
    "traceparent": "W3C trace context",
    "tenant": "whose the task is, where not `default`",
    "tokens": "predicted work in weighted tokens, for the order in a worker",
}
ALL_TYPES = {**MESSAGE_TYPES, **FLEET_TYPES}
_KEYS = {"WorkerBeat": "worker/{worker}", "SlotClaim": "device/{device}/{worker}", "PoolOrder": "pool/{pool}"}
SUBMIT_HEADERS = ("type", "v", "request_id", "deadline", "traceparent")  # what a producer may say


def message_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema (2020-12) of each message's value, by message name."""
    return {
        name: {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **TypeAdapter(message).json_schema(ref_template="#/$defs/{model}"),
            "x-major": MAJOR,
        }
        for name, message in ALL_TYPES.items()
    }


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3.0 document of the bus, with the default prefix."""
    names = TopicNames("chimera.")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Chimera bus",
            "version": f"{MAJOR}.0.0",
            "description": "Every topic and group name begins with the fleet's prefix, here `chimera.`.",
        },
        "defaultContentType": "application/json",
        "channels": {_channel_id(topic): _channel(names.prefix, topic) for topic in CARRIES},
        "operations": {
            f"{action}_{_channel_id(topic)}": {
                "action": action,
                "channel": {"$ref": f"#/channels/{_channel_id(topic)}"},
            }
            for topic in CARRIES
            for action in ("send", "receive")
        },
        "components": {
            "messages": {name: _message(name) for topic in CARRIES.values() for name in topic},
            "schemas": {"TaskHeaders": _headers(HEADERS), "SubmitHeaders": _headers(SUBMIT_HEADERS)},
        },
    }


def _channel_id(topic: str) -> str:
    return "lane" if topic == LANE else topic


def _channel(prefix: str, topic: str) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": f"{prefix}{topic}",
        "description": PURPOSE[topic],
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in CARRIES[topic]},
    }
    if topic == LANE:
        channel["parameters"] = {
            "capability": {"description": "the capability that is one pool's alone: its name"},
            "priority": {"enum": ["interactive", "standard", "batch"]},
        }
    return channel


def _message(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "summary": (ALL_TYPES[name].__doc__ or "").split("\n", 1)[0],
        "headers": {"$ref": f"#/components/schemas/{'Submit' if name == 'SubmitTask' else 'Task'}Headers"},
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./{name}.schema.json"},
        },
        "bindings": {"kafka": {"key": {"type": "string", "description": _KEYS.get(name, "the task_id")}}},
    }


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", "v"],
        "properties": {name: {"type": "string", "description": HEADERS[name]} for name in names},
    }
