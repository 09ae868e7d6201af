"""What each record does to the rows of its task, one law at a time."""

from __future__ import annotations

import orjson
import pytest

from schemas.codec import MESSAGE_TYPES
from schemas.failures import FailureKind
from schemas.messages import CloseReason, Message
from services.core.life.fold import fold
from services.core.life.log_time import LogTime
from services.core.life.rows import (
    NO_ROWS,
    Effect,
    LifeLimits,
    LogEntry,
    ParkedRow,
    SendCancel,
    SendClosed,
    SendDead,
    TaskRows,
)
from services.core.life.table import RECORDS
from tests.life_records import DEADLINE_MS, closed, failed, gave_up, parked, started, succeeded

LIMITS = LifeLimits(max_tries=3)


def life(*records: Message, rows: TaskRows = NO_ROWS, at_ms: int = 100) -> tuple[TaskRows, list[Effect]]:
    effects: list[Effect] = []
    for index, record in enumerate(records):
        rows, owed = fold(rows, LogEntry(3, at_ms + index, "req", record), LIMITS)
        effects.extend(owed)
    return rows, effects


def states(rows: TaskRows) -> dict[str, tuple[str, str | None]]:
    return {row.attempt: (row.state, row.verdict) for row in rows.ledger}


def held(rows: TaskRows) -> ParkedRow:
    assert rows.parked is not None
    return rows.parked


def swept(rows: TaskRows) -> TaskRows:
    return rows._replace(parked=held(rows)._replace(state="swept"))


def test_every_record_of_results_has_a_law_and_every_law_a_message() -> None:
    assert {name.split(".")[0] for name in RECORDS} <= set(MESSAGE_TYPES)
    for law in RECORDS.values():
        assert law.writers
        assert law.when


def test_a_plain_task_leaves_one_outcome_and_one_paid_attempt() -> None:
    rows, effects = life(started("t", "a1"), succeeded("t", "a1", keep_answer=True))
    assert states(rows) == {"a1": ("ended", "outcome")}
    assert rows.ledger[0].deadline_ms == DEADLINE_MS
    assert rows.outcome is not None
    assert rows.outcome.answer is not None
    assert orjson.loads(rows.outcome.answer) == {"inline": {"by": "a1"}, "claim": None}
    assert rows.outcome.answer_expires_ms == 101 + LIMITS.answer_ms
    assert rows.outcome.arrived_ms == 30
    assert rows.outcome.request_id == "req"
    assert not effects


def test_an_answer_is_kept_only_for_who_may_ask_again() -> None:
    rows, _ = life(succeeded("t", "a1"))
    assert rows.outcome is not None
    assert rows.outcome.answer is None


def test_a_second_terminal_changes_nothing_but_the_ledger() -> None:
    first, _ = life(succeeded("t", "a1"))
    rows, _ = life(succeeded("t", "a2"), closed("t"), gave_up("t", "a3"), rows=first)
    assert rows.outcome is first.outcome
    assert states(rows) == {"a1": ("ended", "outcome"), "a2": ("ended", "waste"), "a3": ("ended", "waste")}


@pytest.mark.parametrize(
    ("kind", "charged", "expected"),
    [
        (FailureKind.INTERRUPTED, True, "failed"),
        (FailureKind.RESET, True, "waste"),
        (FailureKind.INTERRUPTED, False, "waste"),
    ],
)
def test_the_tenant_pays_for_failed_tries_that_the_provider_billed(
    kind: FailureKind, charged: bool, expected: str
) -> None:
    rows, _ = life(failed("t", "a1", kind=kind, charged=charged))
    assert states(rows) == {"a1": ("ended", expected)}


@pytest.mark.parametrize(
    ("reason", "expected"), [("cancelled", "failed"), ("deadline", "failed"), ("interrupted", "waste")]
)
def test_a_billed_try_cut_short_is_the_tenants_where_the_close_was(
    reason: CloseReason, expected: str
) -> None:
    cut = failed("t", "a1", "closed", kind=FailureKind.CANCELLED, charged=False)
    rows, _ = life(started("t", "a1"), closed("t", reason), cut)
    assert states(rows) == {"a1": ("ended", expected)}


def test_a_superseded_try_is_waste() -> None:
    rows, _ = life(failed("t", "a1", "closed", kind=FailureKind.CANCELLED))
    assert states(rows) == {"a1": ("ended", "waste")}


def test_a_redelivered_start_loses_earlier_open_tries_and_a_late_end_finds_them_again() -> None:
    rows, _ = life(started("t", "a1"), started("t", "a2"), started("t", "a3", redelivered=True))
    assert states(rows) == {"a1": ("lost", "lost"), "a2": ("lost", "lost"), "a3": ("open", None)}
    rows, _ = life(succeeded("t", "a1"), rows=rows)
    assert states(rows)["a1"] == ("ended", "outcome")
    assert rows.ledger[0].cost_usd == 0.01


def test_a_start_that_is_no_redelivery_loses_nobody() -> None:
    rows, _ = life(started("t", "a1"), started("t", "a2"))
    assert states(rows) == {"a1": ("open", None), "a2": ("open", None)}


def test_poison_counts_lost_and_charged_tries_and_starts_do_not_count() -> None:
    starts = [started("t", f"a{index}", redelivered=True) for index in range(4)]
    rows, effects = life(*starts)
    assert not effects, "three lost, one open: not above the cap"
    rows, effects = life(started("t", "a4", redelivered=True), rows=rows)
    closes = [effect for effect in effects if isinstance(effect, SendClosed)]
    cancels = [effect for effect in effects if isinstance(effect, SendCancel)]
    assert [(one.partition, one.closed.reason, one.closed.by) for one in closes] == [
        (3, "poison", "bookkeeper")
    ]
    assert [(one.cancel.reason, one.cancel.attempt, one.cancel.deadline_ms) for one in cancels] == [
        ("poison", None, DEADLINE_MS)
    ]


def test_uncharged_tries_are_no_poison() -> None:
    evictions = [failed("t", f"a{index}", charged=False) for index in range(9)]
    _, effects = life(*evictions)
    assert not effects


def test_a_poisoned_task_that_only_a_row_holds_becomes_a_dead_letter() -> None:
    rows, _ = life(*(failed("t", f"a{index}") for index in range(3)))
    _, effects = life(failed("t", "a3", "parked"), rows=rows)
    dead = [effect for effect in effects if isinstance(effect, SendDead)]
    assert [(one.reason, one.envelope.value) for one in dead] == [("poison", '{"by":"a3"}')]


def test_a_parked_retry_is_due_when_its_record_says_and_keeps_its_envelope_untouched() -> None:
    rows, _ = life(failed("t", "a1", "parked", due_ms=5_000))
    row = held(rows)
    assert (row.state, row.due_ms, row.deadline_ms, row.holder) == ("parked", 5_000, DEADLINE_MS, None)
    assert row.value == b'{"by":"a1"}'
    assert row.lane == "t.tasks.chat-fast.interactive"


def test_a_held_task_is_due_when_its_last_renewal_says() -> None:
    rows, _ = life(parked("t", "a1", due_ms=30_100))
    assert held(rows).due_ms == 100 + 30_000
    rows, _ = life(parked("t", "a1", renewal=True, due_ms=40_100), rows=rows, at_ms=10_100)
    assert held(rows).due_ms == 10_100 + 30_000
    assert held(rows).holder == "w1"
    assert held(rows).value is not None


def test_an_older_renewal_changes_nothing() -> None:
    rows, _ = life(parked("t", "a1"))
    again, effects = life(parked("t", "a1", renewal=True), rows=rows, at_ms=99)
    assert again.parked is rows.parked
    assert not effects


def test_the_end_of_a_try_is_its_last_word_about_where_the_task_is() -> None:
    rows, _ = life(parked("t", "a1", due_ms=30_000), failed("t", "a1", "parked", due_ms=5_000))
    late, _ = life(parked("t", "a1", due_ms=90_000), parked("t", "a1", renewal=True), rows=rows, at_ms=500)
    assert late.parked is rows.parked
    assert held(late).due_ms == 5_000


def test_a_re_read_redelivery_loses_no_later_try() -> None:
    again = started("t", "a2", redelivered=True)
    rows, _ = life(started("t", "a1"), again, started("t", "a3"))
    rows, _ = life(again, rows=rows)
    assert states(rows) == {"a1": ("lost", "lost"), "a2": ("open", None), "a3": ("open", None)}


def test_a_renewal_by_another_attempt_is_ignored_and_answered_with_a_cancel_of_that_attempt() -> None:
    rows, _ = life(parked("t", "a1"), parked("t", "a2", holder="w2"))
    again, effects = life(parked("t", "a1", renewal=True), rows=rows, at_ms=500)
    assert again.parked is rows.parked
    assert [effect.cancel.attempt for effect in effects if isinstance(effect, SendCancel)] == ["a1"]


def test_a_renewal_after_the_outcome_is_answered_with_a_cancel_of_the_task() -> None:
    rows, _ = life(parked("t", "a1"), succeeded("t", "a2"))
    _, effects = life(parked("t", "a1", renewal=True), rows=rows)
    assert [effect.cancel.attempt for effect in effects if isinstance(effect, SendCancel)] == [None]


def test_a_renewal_that_comes_after_the_sweep_does_not_bring_the_row_back() -> None:
    rows, _ = life(parked("t", "a1"))
    again, effects = life(parked("t", "a1", renewal=True), rows=swept(rows), at_ms=60_000)
    assert held(again).state == "swept"
    assert [effect.cancel.attempt for effect in effects if isinstance(effect, SendCancel)] == ["a1"]


def test_the_next_attempt_parks_again_even_if_its_clock_is_behind() -> None:
    rows, _ = life(failed("t", "a1", "parked"), at_ms=9_000)
    rows, _ = life(failed("t", "a2", "parked"), rows=swept(rows), at_ms=4_000)
    assert (held(rows).state, held(rows).attempt) == ("parked", "a2")
    assert held(rows).value == b'{"by":"a2"}'


def test_a_move_closes_the_row_and_a_re_read_of_the_park_does_not_open_it() -> None:
    rows, _ = life(parked("t", "a1"), failed("t", "a1", "moved"))
    assert held(rows).state == "moved"
    rows, _ = life(parked("t", "a1"), rows=rows)
    assert held(rows).state == "moved"


def test_nothing_parks_after_a_terminal_record() -> None:
    rows, _ = life(closed("t"), failed("t", "a1", "parked"), parked("t", "a2"))
    assert rows.parked is None


def test_the_log_reaches_the_time_of_its_last_record_and_goes_on_while_it_is_silent() -> None:
    reached = LogTime(record_ms=1_000, read_at_s=50.0)
    assert reached.now_ms(50.0) == 1_000
    assert reached.now_ms(52.5) == 3_500
    assert reached.now_ms(10.0) == 1_000, "a steady clock that is not steady moves nothing back"
