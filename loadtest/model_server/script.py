"""What a request may ask the model server to do, in its body field `x_script`.

Either one behaviour, or `{"id": ..., "tries": [behaviour, ...]}`: the k-th call with that id gets the k-th
behaviour, every later call the last one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

UsageWhere = Literal["last_with_choices", "own_chunk", "every_chunk", "none", "zero"]
BreakKind = Literal["reset", "end", "hang"]


class ScriptError(ValueError):
    """The script cannot be followed; `field` is its path in the body, such as `x_script.tries.0.staus`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


def _position(value: object) -> object:
    """True stands for after the first content chunk, False for never; a number is a count of chunks."""
    if isinstance(value, bool):
        return 1 if value else None
    return value


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Frozen):
    """One tool call of the answer; `arguments` is the JSON text that the model would write."""

    id: str
    name: str
    arguments: str = "{}"


Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Behaviour(_Frozen):
    """How one call is answered; what is not set is as the server's settings say. Counts are in chunks."""

    text: str | None = None
    chunks: Annotated[int, Field(ge=1)] | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None

    delay_s: Seconds | None = None
    ttft_s: Seconds | None = None
    chunk_interval_s: Seconds | None = None
    drip_s: Seconds | None = None

    status: Annotated[int, Field(ge=200, le=599)] | None = None
    retry_after: int | float | str | None = None
    error_body: str | dict[str, Any] | None = None
    content_type: str | None = None
    html_error: bool = False
    json_not_sse: bool = False
    raw: str | None = None  # the whole body, as it is: for framings that no field here makes
    headers: dict[str, str] = {}

    reset_before: bool = False
    close_before: bool = False  # FIN instead of an answer, as a server that gave the connection up meanwhile
    reset_after_chunks: Count | None = None
    end_after_chunks: Count | None = None
    hang_after_chunks: Count | None = None

    empty: bool = False
    failed_terminal: bool = False
    bad_json_chunk: Annotated[Count | None, BeforeValidator(_position)] = None

    split_bytes: Annotated[int, Field(ge=1)] | None = None
    crlf: bool = False
    comments: bool = False
    role_only_first: bool = False
    double_finish: bool = False
    usage_where: UsageWhere | None = None
    no_done: bool = False

    @model_validator(mode="after")
    def _breaks_once(self) -> Self:
        breaks = (self.reset_after_chunks, self.end_after_chunks, self.hang_after_chunks)
        if sum(at is not None for at in breaks) > 1:
            raise ValueError("only one of reset_after_chunks, end_after_chunks, hang_after_chunks can happen")
        return self

    @property
    def break_point(self) -> tuple[BreakKind, int] | None:
        """Where the answer breaks off, in content chunks, and how."""
        if self.reset_after_chunks is not None:
            return "reset", self.reset_after_chunks
        if self.end_after_chunks is not None:
            return "end", self.end_after_chunks
        if self.hang_after_chunks is not None:
            return "hang", self.hang_after_chunks
        return None

    @property
    def answers_with_error(self) -> bool:
        return self.status is not None or self.html_error or self.error_body is not None

    def finish_or(self, usual: str) -> str | None:
        """The scripted finish_reason; an explicit null is one."""
        return self.finish_reason if "finish_reason" in self.model_fields_set else usual


class Tries(_Frozen):
    id: Annotated[str, Field(min_length=1)]
    tries: Annotated[tuple[Behaviour, ...], Field(min_length=1)]


PLAIN = Behaviour()


class ScriptBook:
    """Counts the calls per script id, so that the k-th call gets the k-th behaviour."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}

    def behaviour(self, script: object) -> Behaviour:
        """The behaviour for this call. Raises ScriptError, and then counts nothing."""
        if script is None:
            return PLAIN
        if not isinstance(script, dict):
            raise ScriptError("x_script", "must be an object")
        try:
            if "tries" not in script:
                return Behaviour.model_validate(script)
            tries = Tries.model_validate(script)
        except ValidationError as error:
            raise _named(error) from error
        calls = self._calls.get(tries.id, 0)
        self._calls[tries.id] = calls + 1
        return tries.tries[min(calls, len(tries.tries) - 1)]

    def clear(self) -> None:
        self._calls.clear()


def _named(error: ValidationError) -> ScriptError:
    first = error.errors(include_url=False, include_context=False)[0]
    field = ".".join(["x_script", *(str(part) for part in first["loc"])])
    problem = "is not a field of a script" if first["type"] == "extra_forbidden" else first["msg"]
    return ScriptError(field, problem)
