"""Whether what came is an answer: a stream that just stops, or ends with nothing said, is a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.failures import FailureKind
from schemas.messages import Failure, TaskKind
from services.core.assembly import Assembly

IN_CHUNKS: frozenset[TaskKind] = frozenset({"chat", "completion"})
# A model may end before it says anything for these reasons, and only for these.
_SILENT_ENDS = frozenset({"length", "max_tokens", "content_filter"})
_FAILED_ENDS = frozenset({"error", "abort", "failed"})


def of_stream(assembly: Assembly) -> Failure | None:
    """None for a whole answer; else what it failed of."""
    if not assembly.finished:
        return _broken(assembly, "the backend's answer ended before it was finished")
    ends = assembly.finish_reasons
    if ends & _FAILED_ENDS:
        return _broken(assembly, "the backend failed while it answered")
    if not assembly.has_content and not ends <= _SILENT_ENDS:
        return Failure(kind=FailureKind.BAD_ANSWER, message="the backend's answer is empty")
    return None


def of_whole(kind: TaskKind, answer: Mapping[str, Any] | None) -> Failure | None:
    """The same, of a kind whose answer has no chunks."""
    if kind == "embedding":
        return of_embeddings(answer)
    if answer is not None and "result" in answer:
        return None
    return Failure(kind=FailureKind.BAD_ANSWER, message="the tool's answer has no result")


def of_embeddings(answer: Mapping[str, Any] | None) -> Failure | None:
    rows = None if answer is None else answer.get("data")
    if isinstance(rows, list) and rows:
        return None
    return Failure(kind=FailureKind.BAD_ANSWER, message="the backend's answer has no embeddings")


def after_content(failure: Failure) -> Failure:
    """A break has another name once something was said; a guard, a deadline and a cancel keep their own."""
    if failure.kind not in _BREAKS:
        return failure
    return Failure(
        kind=FailureKind.INTERRUPTED,
        message=f"the answer broke off: {failure.message}",
        status=failure.status,
        retry_after_s=failure.retry_after_s,
    )


def before_content(failure: Failure) -> Failure:
    """A client that reads frames cannot know whether they were content: here nothing was said."""
    if failure.kind is not FailureKind.INTERRUPTED:
        return failure
    return failure.model_copy(update={"kind": FailureKind.RESET})


_BREAKS = frozenset(
    {
        FailureKind.UNREACHABLE,
        FailureKind.RESET,
        FailureKind.RATE_LIMITED,
        FailureKind.OVERLOADED,
        FailureKind.SERVER_ERROR,
        FailureKind.BAD_ANSWER,
        FailureKind.KEY_REFUSED,
        FailureKind.NOT_FOUND,
        FailureKind.BAD_REQUEST,
        FailureKind.TOO_LONG,
        FailureKind.INTERNAL,
    }
)


def _broken(assembly: Assembly, message: str) -> Failure:
    kind = FailureKind.INTERRUPTED if assembly.has_content else FailureKind.RESET
    return Failure(kind=kind, message=message)
