"""Record headers: what a record is, and what changes about a task while it travels.

Law: the value of a lane record is never re-encoded; tries, hops, due time and money spent live here.
All header values are UTF-8 text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

RawHeaders = Iterable[tuple[str, bytes]]
WireHeaders = list[tuple[str, bytes]]


SWEPT = "swept"
"""Header of a lane record that the sweep wrote: whoever held the task before was not heard of in time."""

LATE = "late"
"""Header of an AttemptStarted that another worker wrote for one that is gone: for the ledger only. In the log
it may follow attempts that began after it, and would say of a stream what is not so."""


class HeaderError(ValueError):
    """A header is missing or not of the form it must have; the text names it and says what was expected."""


@dataclass(frozen=True, slots=True)
class TaskHeaders:
    """Headers of a lane record.

    deadline_ms: absolute, epoch milliseconds; nothing runs past it.
    result_partition: the partition of `results` that decides about this task, fixed at acceptance.
    reply_partition: the partition of `replies` that its client reads, or None where nobody streams.
    tries: tries charged to the task so far; only this is compared with a cap.
    not_before_ms: 0, or the earliest time to start.
    tenant, tokens: whose it is and its predicted work in weighted tokens, for the order in a worker, which
    does not read the value before the task starts.
    """

    request_id: str
    deadline_ms: int
    result_partition: int
    reply_partition: int | None = None
    tries: int = 0
    hops: int = 0
    not_before_ms: int = 0
    spent_usd: float = 0.0
    traceparent: str | None = None
    tenant: str = "default"
    tokens: float = 0.0

    def with_changes(self, **changes: Any) -> TaskHeaders:
        return replace(self, **changes)

    def to_text(self) -> dict[str, str]:
        text = {
            "type": "RunTask",
            "v": "1",
            "request_id": self.request_id,
            "deadline": str(self.deadline_ms),
            "result_partition": str(self.result_partition),
            "tries": str(self.tries),
            "hops": str(self.hops),
            "not_before": str(self.not_before_ms),
            "spent_usd": repr(self.spent_usd),
        }
        if self.reply_partition is not None:
            text["reply_partition"] = str(self.reply_partition)
        if self.traceparent is not None:
            text["traceparent"] = self.traceparent
        if self.tenant != "default":
            text["tenant"] = self.tenant
        if self.tokens:
            text["tokens"] = repr(self.tokens)
        return text

    def to_wire(self) -> WireHeaders:
        return to_wire(self.to_text())

    @staticmethod
    def from_text(text: Mapping[str, str]) -> TaskHeaders:
        """Raises HeaderError naming the header that is missing or wrong."""
        reply = text.get("reply_partition")
        return TaskHeaders(
            request_id=text.get("request_id", ""),
            deadline_ms=_whole(text, "deadline"),
            result_partition=_whole(text, "result_partition"),
            reply_partition=None if reply is None else _whole(text, "reply_partition"),
            tries=_whole(text, "tries", 0),
            hops=_whole(text, "hops", 0),
            not_before_ms=_whole(text, "not_before", 0),
            spent_usd=_number(text, "spent_usd", 0.0),
            traceparent=text.get("traceparent"),
            tenant=text.get("tenant", "default")[:128] or "default",
            tokens=_number(text, "tokens", 0.0),
        )


def to_wire(text: Mapping[str, str]) -> WireHeaders:
    return [(name, value.encode()) for name, value in text.items()]


def to_text(raw: RawHeaders) -> dict[str, str]:
    """Headers as text; bytes that are not UTF-8 become escapes, so that reading them never fails."""
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in raw}


def _whole(text: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = text.get(name)
    if value is None:
        if default is None:
            raise HeaderError(f"header {name}: missing, expected a whole number")
        return default
    if value == "0":
        return 0
    if not (value.isascii() and value.isdigit()) or len(value) > 18:
        raise HeaderError(f"header {name}: {value[:64]!r}, expected a whole number of at least 0")
    return int(value)


def _number(text: Mapping[str, str], name: str, default: float) -> float:
    value = text.get(name)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError:
        raise HeaderError(f"header {name}: {value[:64]!r}, expected a number") from None
    if not 0 <= number < 1e9:
        raise HeaderError(f"header {name}: {value[:64]!r}, expected a number of at least 0")
    return number
