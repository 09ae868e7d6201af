"""What follows a failed try: another one here, another one later, or the end.

Back-off is exponential with full jitter: uniform in [0, min(cap, base * 2^(tries - 1))) (M. Brooker,
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Retry-After is added to it: it only ever
grows the wait, and workers told the same time do not come back in step.
"""

import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum

from schemas.failures import FailureFacts


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retrying. `max_tries` counts the first try too."""

    max_tries: int = 3
    base_s: float = 0.25
    backpressure_base_s: float = 1.0
    cap_s: float = 30.0
    local_below_s: float = 2.0


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A try without an outcome. `tries` includes it; `deadline_s` is on the caller's clock."""

    facts: FailureFacts
    tries: int
    deadline_s: float
    content_streamed: bool = False
    retry_after_s: float | None = None


class GiveUpReason(Enum):
    NOT_RETRYABLE = "not_retryable"
    STREAMED = "streamed"  # the client has content of this try; another one would splice
    TRIES = "tries"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Local:
    """Try again in this worker, `delay_s` from now."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Parked:
    """Let go of the task until `due_s`, on the caller's clock."""

    due_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: GiveUpReason


Next = Local | Parked | GiveUp


def after_failure(failed: FailedTry, policy: RetryPolicy, now_s: float, uniform: float) -> Next:
    """Decide by a uniform number in [0, 1). The next try is due before the deadline, or there is none."""
    reason = _barred(failed, policy)
    if reason is not None:
        return GiveUp(reason)
    floor_s = max(0.0, failed.retry_after_s or 0.0)
    room_s = failed.deadline_s - now_s - floor_s
    delay_s = floor_s + uniform * min(_window_s(failed, policy), room_s)
    if room_s <= 0.0 or now_s + delay_s >= failed.deadline_s:
        return GiveUp(GiveUpReason.DEADLINE)
    return Local(delay_s) if delay_s < policy.local_below_s else Parked(now_s + delay_s)


def _barred(failed: FailedTry, policy: RetryPolicy) -> GiveUpReason | None:
    if not failed.facts.retryable:
        return GiveUpReason.NOT_RETRYABLE
    if failed.content_streamed:
        return GiveUpReason.STREAMED
    if failed.tries >= policy.max_tries:
        return GiveUpReason.TRIES
    return None


def _window_s(failed: FailedTry, policy: RetryPolicy) -> float:
    backpressure = not failed.facts.counts_against_backend  # retryable and not the backend's fault, as a 429
    base_s = policy.backpressure_base_s if backpressure else policy.base_s
    doublings = min(max(failed.tries - 1, 0), 32)  # the count comes from a header and may be any number
    return min(policy.cap_s, base_s * float(2**doublings))


_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_retry_after(value: str, now_s: float) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110, 10.2.3): seconds, also with a fraction, or a date.

    `now_s` is Unix time. A date in the past is 0; what is neither is None.
    """
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now_s)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
