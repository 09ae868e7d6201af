"""The guards of a try, on a clock that the test owns."""

from __future__ import annotations

from schemas.failures import FailureKind
from services.core.fleet import Timeouts
from services.core.stream_guards import StreamGuards

LIMITS = Timeouts(connect_s=1, first_token_s=3, idle_s=2, total_s=20, min_tokens_per_s=2)


def guards(deadline_s: float = 1000, limits: Timeouts = LIMITS, *, streaming: bool = True) -> StreamGuards:
    return StreamGuards(limits, 100.0, deadline_s, streaming=streaming)


def test_before_content_the_first_token_is_due_and_after_it_the_next() -> None:
    made = guards()
    assert made.due() == (103.0, FailureKind.FIRST_TOKEN_TIMEOUT)
    made.saw(10, 101.0)
    assert (made.first_s, made.due()) == (101.0, (103.0, FailureKind.IDLE_TIMEOUT))
    made.saw(10, 104.0)
    assert (made.first_s, made.due()) == (101.0, (106.0, FailureKind.IDLE_TIMEOUT))


def test_a_drip_that_never_falls_silent_is_too_slow() -> None:
    made = guards()
    made.saw(1, 101.0)
    now_s = 101.0
    while made.due()[1] is not FailureKind.TOO_SLOW:
        now_s += 1.0
        made.saw(1, now_s)
        assert now_s < 120
    assert made.due()[0] < now_s + LIMITS.idle_s


def test_the_deadline_and_the_total_are_absolute() -> None:
    assert guards(102.0).due() == (102.0, FailureKind.DEADLINE)
    made = guards()
    for now_s in range(101, 120):
        made.saw(100, float(now_s))
    assert made.due() == (120.0, FailureKind.TOTAL_TIMEOUT)


def test_what_cannot_stream_has_only_its_total_and_the_deadline() -> None:
    assert guards(streaming=False).due() == (120.0, FailureKind.TOTAL_TIMEOUT)
    assert guards(110.0, streaming=False).due() == (110.0, FailureKind.DEADLINE)
