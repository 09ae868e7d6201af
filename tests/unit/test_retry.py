"""What follows a failed try."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.failures import FAILURE_FACTS, FailureFacts, FailureKind
from services.core.retry import (
    FailedTry,
    GiveUp,
    GiveUpReason,
    Local,
    Next,
    Parked,
    RetryPolicy,
    after_failure,
    parse_retry_after,
)

FAULT = FAILURE_FACTS[FailureKind.SERVER_ERROR]
BACKPRESSURE = FAILURE_FACTS[FailureKind.RATE_LIMITED]
NOW_S = 1_000.0
FIRST = FailedTry(FAULT, tries=1, deadline_s=NOW_S + 120)


def wait_s(followed: Next) -> float:
    assert not isinstance(followed, GiveUp)
    return followed.delay_s if isinstance(followed, Local) else followed.due_s - NOW_S


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        (replace(FIRST, facts=FAILURE_FACTS[FailureKind.BAD_REQUEST]), GiveUpReason.NOT_RETRYABLE),
        (replace(FIRST, content_streamed=True), GiveUpReason.STREAMED),
        (replace(FIRST, tries=3), GiveUpReason.TRIES),
        (replace(FIRST, retry_after_s=120.0), GiveUpReason.DEADLINE),
        (replace(FIRST, deadline_s=NOW_S), GiveUpReason.DEADLINE),
    ],
)
def test_what_ends_a_task(failed: FailedTry, reason: GiveUpReason) -> None:
    assert after_failure(failed, RetryPolicy(), NOW_S, 0.5) == GiveUp(reason)


def test_short_waits_stay_in_the_worker_long_ones_are_parked() -> None:
    assert after_failure(replace(FIRST, retry_after_s=1.5), RetryPolicy(), NOW_S, 0.0) == Local(1.5)
    assert after_failure(replace(FIRST, retry_after_s=2.0), RetryPolicy(), NOW_S, 0.0) == Parked(NOW_S + 2.0)


def test_the_window_doubles_with_each_try_up_to_the_cap() -> None:
    policy = RetryPolicy(max_tries=100, base_s=1.0, cap_s=10.0)
    far = replace(FIRST, deadline_s=NOW_S + 1e6)
    waits = [wait_s(after_failure(replace(far, tries=tries), policy, NOW_S, 0.5)) for tries in range(1, 7)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_backpressure_waits_longer_than_a_fault() -> None:
    pressed = after_failure(replace(FIRST, facts=BACKPRESSURE), RetryPolicy(), NOW_S, 0.5)
    assert wait_s(pressed) > wait_s(after_failure(FIRST, RetryPolicy(), NOW_S, 0.5))


@given(
    facts=st.sampled_from([FAULT, BACKPRESSURE]),
    tries=st.integers(0, 10**6),
    left_s=st.floats(-10, 1e6),
    retry_after_s=st.none() | st.floats(0, 1e6),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_the_next_try_is_before_the_deadline_and_not_before_the_backend_allows_it(
    facts: FailureFacts, tries: int, left_s: float, retry_after_s: float | None, uniform: float
) -> None:
    policy = RetryPolicy(max_tries=10**7)
    failed = FailedTry(facts, tries, NOW_S + left_s, retry_after_s=retry_after_s)
    followed = after_failure(failed, policy, NOW_S, uniform)
    if isinstance(followed, GiveUp):
        assert followed.reason is GiveUpReason.DEADLINE
        assert left_s - (retry_after_s or 0.0) < 1e-6 or uniform > 0.99
        return
    assert NOW_S + wait_s(followed) < failed.deadline_s
    assert wait_s(followed) >= (retry_after_s or 0.0) - 1e-6
    assert isinstance(followed, Local) == (wait_s(followed) < policy.local_below_s)


@given(retry_after_s=st.floats(0, 100), uniform=st.floats(0, 1, exclude_max=True))
def test_retry_after_only_ever_grows_the_wait(retry_after_s: float, uniform: float) -> None:
    failed = replace(FIRST, deadline_s=NOW_S + 1e6)
    without = wait_s(after_failure(failed, RetryPolicy(), NOW_S, uniform))
    told = wait_s(after_failure(replace(failed, retry_after_s=retry_after_s), RetryPolicy(), NOW_S, uniform))
    assert told >= without - 1e-9
    assert told >= retry_after_s - 1e-9


EPOCH_OF_EXAMPLE = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 7.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 7.0),
        ("Sun Nov  6 08:49:37 1994", 7.0),
        ("Sun, 06 Nov 1994 08:49:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("inf", None),
        ("nan", None),
        ("1e400", None),
        ("9" * 400, None),
        ("١٢", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, EPOCH_OF_EXAMPLE - 7.0) == seconds


@given(
    st.text() | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,12} [A-Z][a-z]{2} [0-9]{1,12} [0-9:]{1,9} [A-Z+0-9-]*")
)
def test_any_header_gives_a_wait_or_nothing(value: str) -> None:
    parsed = parse_retry_after(value, NOW_S)
    assert parsed is None or 0.0 <= parsed < float("inf")
