"""Every message on the bus. Frozen, versioned, JSON; unknown fields of a newer producer are tolerated.

Times are milliseconds since the epoch (`_ms`), money is USD (`_usd`), ids are strings. What changes while a
task travels lives in its headers (`schemas.headers`), so a record's value is never re-encoded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.failures import FailureKind
from schemas.payload import Payload
from schemas.topics import Priority

TaskKind = Literal["chat", "completion", "embedding", "tool"]
Objective = Literal["latency", "quality", "cost", "balanced"]
Affinity = Literal["sticky", "soft", "off"]
DataPolicy = Literal["any", "local"]
CloseReason = Literal["cancelled", "deadline", "interrupted", "superseded", "poison"]
Id = Annotated[str, Field(min_length=1, max_length=128)]
Millis = Annotated[int, Field(ge=0)]


class Message(BaseModel):
    """What all records share: the task they are about."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_id: Id


class Usage(BaseModel):
    """Tokens of one attempt. `estimated` where the backend did not count them itself."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    estimated: bool = False
    cost_usd: float = Field(default=0.0, ge=0)


class Failure(BaseModel):
    """Why a try or a task failed. `message` is fit for the caller: no key, prompt or answer is in it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: FailureKind
    message: str
    status: int | None = None  # the backend's HTTP status, where there was one
    code: str | None = None  # the backend's error code, where it says what the caller must mend
    param: str | None = None
    retry_after_s: float | None = None


class Try(BaseModel):
    """Who ran an attempt, where and since when: what the ledger keeps of it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    attempt: Id
    worker: Id
    pool: str
    model: str
    model_version: str = ""
    started_ms: Millis


class Envelope(BaseModel):
    """A lane record as it was: its headers (text) and the untouched text of its value."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    lane: str
    headers: dict[str, str]
    value: str


class RunTask(Message):
    """One unit of model work, on a lane. The lane record holds the task until a terminal record does."""

    kind: TaskKind = "chat"
    tenant: str = "default"
    priority: Priority = "interactive"
    objective: Objective = "balanced"
    pool: str
    model: str = ""  # as the caller asked for it
    stream: bool = False
    required_capabilities: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # what the body needs of a pool: tools, vision ...
    input_tokens: int = Field(default=0, ge=0)  # estimates, for whoever has to find another pool
    output_tokens: int | None = None
    data_policy: DataPolicy = "any"  # local: never to a pool whose provider is outside
    session_id: str | None = None
    affinity: Affinity = "soft"  # how much the session's worker is worth: a wait, a look, nothing
    keep_answer: bool = False  # a call with an Idempotency-Key: its answer is replayed for 24 h
    arrived_ms: Millis
    copy_of: Id | None = None
    replay_of: Id | None = None
    workflow_id: Id | None = None
    body: Payload


class SubmitTask(Message):
    """A task from a producer that does not route for itself, on `submissions`.

    `task_id` is minted by the producer (a uuid, say): the same id sent again is the same task, with one
    outcome. `body` is what `POST /v1/chat/completions` takes (`kind` completion: `/v1/completions`,
    embedding: `/v1/embeddings`); its `model` names a pool, a model or `auto`; its `stream` changes nothing,
    for nobody is streamed to. Of `kind` tool it is `{"name": ..., "arguments": {...}}`, with `model` where
    not any pool of tools will do; the answer is `{"result": ...}`.

    Wire headers: `type: SubmitTask` and `v: 1`, else the record is not read. Optional: `deadline` (absolute,
    ms since the epoch, at most 7 days ahead; default: the record's time and what its priority has),
    `request_id` (default: the task_id), `traceparent`. Any key will do; the task_id is a good one.

    The outcome is the first terminal record of the task_id on `results`, in partition CRC-32 of the task_id
    (UTF-8) modulo the number of partitions, and the row of `tasks`.
    """

    kind: TaskKind = "chat"  # chat, completion and tool are admitted
    tenant: str = "default"
    priority: Priority = "standard"
    objective: Objective = "balanced"
    required_capabilities: tuple[str, ...] = ()
    data_policy: DataPolicy = "any"
    session_id: str | None = None
    affinity: Affinity = "soft"
    keep_answer: bool = False  # the row of `tasks` has the answer too, for 24 h
    body: Payload


class AttemptStarted(Message):
    """A try is 50 ms old or about to deliver content; `redelivered` ones say so before they start."""

    tenant: str = "default"
    run: Try
    deadline_ms: Millis
    redelivered: bool = False


class AttemptFailed(Message):
    """A try is over and the task is not, or was closed by its owner meanwhile.

    `next` says where the task is now: `local` (waits in the worker), `parked` (until `due_ms`; `envelope` is
    its new form), `moved` (to `lane`), `closed` (cancelled or ended by another record).
    `charged`: the try counts against the task (evictions and moves do not).
    """

    tenant: str = "default"
    run: Try
    ended_ms: Millis
    usage: Usage
    failure: Failure
    next: Literal["local", "parked", "moved", "closed"]
    charged: bool = True
    due_ms: Millis | None = None
    lane: str | None = None
    envelope: Envelope | None = None


class TaskParked(Message):
    """The worker `holder` keeps a task whose lane record it had to let go; renewed without `envelope`."""

    attempt: Id
    holder: Id
    due_ms: Millis
    deadline_ms: Millis
    envelope: Envelope | None = None


class Timing(BaseModel):
    """Where an attempt's time went, in milliseconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    queue_ms: float = 0.0  # lane record written -> try started
    first_token_ms: float = 0.0  # try started -> first content
    decode_ms: float = 0.0  # first content -> last


class TaskSucceeded(Message):
    """Terminal. `answer` is the whole OpenAI response; `chunks` counts the records sent to `replies`."""

    tenant: str = "default"
    kind: TaskKind = "chat"
    run: Try
    ended_ms: Millis
    usage: Usage
    answer: Payload
    chunks: int = 0
    keep_answer: bool = False
    timing: Timing = Timing()


class TaskFailed(Message):
    """Terminal. `run` and `usage` if a try ran; `answer` is what was said before it broke."""

    tenant: str = "default"
    kind: TaskKind = "chat"
    run: Try | None = None
    ended_ms: Millis
    usage: Usage | None = None
    failure: Failure
    tries: int = 0
    chunks: int = 0
    answer: Payload | None = None
    timing: Timing = Timing()


class TaskClosed(Message):
    """Terminal, without a worker's word: by the owner (cancelled, interrupted) or the bookkeeper."""

    tenant: str = "default"
    reason: CloseReason
    by: str
    ended_ms: Millis


class CancelTask(Message):
    """On `control`: stop the task, or only one attempt of it. Kept as a tombstone until `deadline_ms`."""

    attempt: Id | None = None
    deadline_ms: Millis
    reason: CloseReason = "cancelled"


class ReplyChunk(Message):
    """On `replies`: consecutive stream chunks (OpenAI chunk objects) of one attempt; `seq` counts from 0.

    `worker` stands in the first one: a worker that dies right after it may never have announced the attempt.
    """

    attempt: Id
    seq: int = Field(ge=0)
    events: list[dict[str, object]]
    worker: Id | None = None


TERMINAL = (TaskSucceeded, TaskFailed, TaskClosed)
