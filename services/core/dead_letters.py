"""Dead letters as an operator sees them: grouped by cause, filtered, and made into new tasks.

A replay is a new task: its id is uuid5(old id, n), so the n-th replay of a letter is one task however often
it is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from schemas.codec import SchemaError, decode_as, encode
from schemas.headers import HeaderError, TaskHeaders
from schemas.messages import RunTask
from schemas.payload import Payload
from services.core.placement import stable_partition

_ID = re.compile(r"\b[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\d+")
_OWN = ("dead_", "swept")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of `tasks.dead`. `partition` and `offset` name it there; `headers` are text."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        return self.headers.get("dead_reason", "")

    @property
    def tries(self) -> int:
        text = self.headers.get("dead_tries", "0")
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def origin(self) -> str:
        """`topic/partition/offset` where the record stood."""
        return "/".join(
            self.headers.get(f"dead_origin_{part}", "?") for part in ("topic", "partition", "offset")
        )

    @property
    def lane(self) -> str:
        return self.headers.get("dead_origin_topic", "")

    @property
    def task_id(self) -> str:
        return (self.key or b"").decode("utf-8", "backslashreplace")

    @property
    def cause(self) -> str:
        """The reason without what differs from letter to letter: ids, numbers, quoted values."""
        return _NUMBER.sub("N", _QUOTED.sub("'...'", _ID.sub("ID", self.reason)))


@dataclass(frozen=True, slots=True)
class Cause:
    """Letters that died of the same: how many, the first and the last, an example."""

    cause: str
    lane: str
    count: int
    first_ms: int
    last_ms: int
    example: DeadLetter


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; None and 0 leave a part out. `cause` and `lane` are parts of the text."""

    cause: str | None = None
    lane: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    since_ms: int = 0

    def takes(self, letter: DeadLetter) -> bool:
        return (
            (self.cause is None or self.cause in letter.cause or self.cause in letter.reason)
            and (self.lane is None or self.lane in letter.lane)
            and (self.task_id is None or self.task_id == letter.task_id)
            and (self.tenant is None or self.tenant == letter.headers.get("tenant", "default"))
            and letter.at_ms >= self.since_ms
        )


def by_cause(letters: Iterable[DeadLetter]) -> list[Cause]:
    """Groups of the same cause and lane, the largest first."""
    groups: dict[tuple[str, str], list[DeadLetter]] = {}
    for letter in letters:
        groups.setdefault((letter.cause, letter.lane), []).append(letter)
    causes = [
        Cause(
            cause,
            lane,
            len(group),
            min(letter.at_ms for letter in group),
            max(letter.at_ms for letter in group),
            group[-1],
        )
        for (cause, lane), group in groups.items()
    ]
    return sorted(causes, key=lambda cause: (-cause.count, cause.cause, cause.lane))


@dataclass(frozen=True, slots=True)
class Replay:
    """The new task and where it goes; `old` is the letter's task."""

    old: str
    task: RunTask
    headers: TaskHeaders
    value: bytes


@dataclass(frozen=True, slots=True)
class NotReplayable:
    """Why no task comes of a letter."""

    why: str


def replay_id(task_id: str, n: int) -> str:
    """uuid5 over the old id; one that is no UUID is hashed into one first."""
    try:
        space = uuid.UUID(task_id)
    except ValueError:
        space = uuid.uuid5(uuid.NAMESPACE_OID, task_id)
    return str(uuid.uuid5(space, str(n)))


def replay(
    letter: DeadLetter, value: bytes | None, n: int, deadline_ms: int, now_ms: int, partitions: int
) -> Replay | NotReplayable:
    """The n-th replay of a letter. `value`: the whole original, where the letter has only a part of it."""
    if letter.headers.get("dead_claim") and value is None:
        return NotReplayable("its value is in the blob store, which does not have it any more")
    try:
        old = decode_as(RunTask, letter.value if value is None else value)
        carried = {name: said for name, said in letter.headers.items() if not name.startswith(_OWN)}
        TaskHeaders.from_text({"deadline": "0", "result_partition": "0", **carried})
    except SchemaError as fault:
        return NotReplayable(f"not a task: {fault}")
    except HeaderError as fault:
        return NotReplayable(str(fault))
    new_id = replay_id(old.task_id, n)
    body = old.body
    if body.claim is None:
        body = Payload(inline=orjson.Fragment(orjson.dumps(body.inline)))
    task = old.model_copy(
        update={
            "task_id": new_id,
            "replay_of": old.task_id,
            "stream": False,  # its client is gone
            "keep_answer": True,
            "arrived_ms": now_ms,
            "body": body,
        }
    )
    headers = TaskHeaders(
        request_id=carried.get("request_id") or new_id,
        deadline_ms=deadline_ms,
        result_partition=stable_partition(new_id, partitions),
        traceparent=carried.get("traceparent"),
        tenant=old.tenant,
    )
    return Replay(old.task_id, task, headers, encode(task))
