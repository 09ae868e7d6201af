"""The client's JSON made fit for the backend, and the backend's events made fit for the client.

Outwards: the model's name is the backend's, usage is always asked for. Inwards: id, model and creation time
are the same in every event, usage is taken out of the stream and said once at its end, and only to a client
that asked for it. How a choice is made normal: chunk_form.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from schemas.messages import TaskKind
from services.core.fleet import Pool

LLAMA_CPP = "llama.cpp"  # the provider of fleet.yaml

PATHS: Mapping[TaskKind, str] = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
}
_OF_EVERY_EVENT = frozenset({"id", "object", "created", "model", "choices", "usage"})
_ID_PREFIX: Mapping[TaskKind, str] = {"chat": "chatcmpl-", "completion": "cmpl-", "embedding": "embd-"}


def answer_id(kind: TaskKind, task_id: str) -> str:
    return _ID_PREFIX.get(kind, "") + task_id


def backend_body(body: Mapping[str, Any], pool: Pool, *, streaming: bool) -> bytes:
    """The JSON to POST: all of the client's fields but the model, and the stream as the pool can do it."""
    sent = dict(body)
    sent["model"] = pool.backend_model or pool.model
    options = sent.pop("stream_options", None)
    sent.pop("stream", None)
    if streaming:
        sent["stream"] = True
        if pool.stream_usage:
            sent["stream_options"] = (options if isinstance(options, dict) else {}) | {"include_usage": True}
        if pool.provider == LLAMA_CPP:
            # It looks for a hang-up only between results; while it reads a prompt, progress is the only one.
            sent["return_progress"] = True
    return orjson.dumps(sent)


def only_progress(event: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether an event says how much of the prompt was read, and to a client that did not ask for that."""
    return "prompt_progress" in event and not body.get("return_progress")


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether the client of a stream asked for its usage."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class EventRewriter:
    """Makes the events of one try the client's own. `usage_asked`: the last event will carry the usage.

    `created_s` (Unix time) stands in where the first event does not say when the answer was made. An event
    without choices breaks clients that read the first one unasked (Azure's results of its prompt filter
    come in such a one): what else it says comes with the next event that has some.
    """

    __slots__ = ("_carried", "_created", "_id", "_made", "_model", "_object", "_usage_asked")

    def __init__(
        self, kind: TaskKind, task_id: str, model: str, created_s: int, *, usage_asked: bool
    ) -> None:
        self._id = answer_id(kind, task_id)
        self._model = model
        self._object = "chat.completion.chunk" if kind == "chat" else "text_completion"
        self._usage_asked = usage_asked
        self._created: Any = created_s
        self._made = False
        self._carried: dict[str, Any] = {}

    def event(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event, changed in place, or None where nothing of it is for the client yet."""
        event.pop("usage", None)
        if not event.get("choices") and "prompt_progress" not in event:
            for name in event.keys() - _OF_EVERY_EVENT:
                if event[name] is not None:
                    self._carried[name] = event[name]
            return None
        if not self._made:
            self._made = True
            self._created = event.get("created", self._created)
        event["id"] = self._id
        event["object"] = self._object
        event["created"] = self._created
        event["model"] = self._model
        if self._carried:
            event.update(self._carried)
            self._carried = {}
        if self._usage_asked:
            event["usage"] = None
        return event

    def usage_event(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": self._object,
            "created": self._created,
            "model": self._model,
            "choices": [],
            "usage": usage,
        }
