"""The rows of a task's life do not depend on how often, and from where, the log was read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.messages import Message, TaskClosed, TaskFailed, TaskParked, TaskSucceeded
from services.core.life.batch import fold_batch
from services.core.life.rows import (
    Effect,
    LifeLimits,
    LogEntry,
    TaskRows,
    owed_key,
)
from services.core.life.table import PARKED_MOVES, LedgerState, ParkedState, ParkedStep
from tests.life_records import closed, failed, gave_up, parked, started, succeeded

LIMITS = LifeLimits(max_tries=3)
TERMINAL = (TaskSucceeded, TaskFailed, TaskClosed)
tasks = st.sampled_from(["t1", "t2"])
attempts = st.sampled_from(["a1", "a2", "a3", "a4", "a5"])


@st.composite
def records(draw: st.DrawFn) -> Message:
    task = draw(tasks)
    attempt = f"{task}-{draw(attempts)}"
    redelivered, charged = draw(st.booleans()), draw(st.booleans())
    makers: dict[str, Callable[[], Message]] = {
        "started": lambda: started(task, attempt, redelivered=redelivered),
        "local": lambda: failed(task, attempt, "local", charged=charged),
        "parked": lambda: failed(task, attempt, "parked", due_ms=100),
        "moved": lambda: failed(task, attempt, "moved", charged=False),
        "over": lambda: failed(task, attempt, "closed", charged=charged),
        "held": lambda: parked(task, attempt),
        "renewed": lambda: parked(task, attempt, renewal=True),
        "succeeded": lambda: succeeded(task, attempt, keep_answer=charged),
        "gave_up": lambda: gave_up(task, attempt),
        "closed": lambda: closed(task, "deadline" if charged else "cancelled"),
    }
    # Ends are rare, so that most logs have a life before them.
    names = ["started", "local", "parked", "held", "renewed"] * 3 + ["moved", "over"] * 2
    return makers[draw(st.sampled_from([*names, "succeeded", "gave_up", "closed"]))]()


@dataclass(frozen=True)
class Sweep:
    """The sweep takes what is parked; `marks`: it also lives to mark it swept."""

    marks: bool


@dataclass
class Rows:
    """A store in memory: what fold_batch says is written, and nothing else."""

    tasks: dict[str, TaskRows] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def apply(self, entries: Sequence[LogEntry]) -> None:
        folded = fold_batch(entries, self.tasks, LIMITS)
        for outcome in folded.changes.outcomes:
            before = self.tasks.get(outcome.task_id, TaskRows())
            assert before.outcome is None, "an outcome is written once"
            self.tasks[outcome.task_id] = before._replace(outcome=outcome)
        for row in folded.changes.ledger:
            before = self.tasks.get(row.task_id, TaskRows())
            ledger = {old.attempt: old for old in before.ledger} | {row.attempt: row}
            ordered = tuple(sorted(ledger.values(), key=lambda one: one.ordinal))
            self.tasks[row.task_id] = before._replace(ledger=ordered)
        for held in folded.changes.parked:
            self.tasks[held.task_id] = self.tasks.get(held.task_id, TaskRows())._replace(parked=held)
        for task_id in folded.changes.unparked:
            self.tasks[task_id] = self.tasks[task_id]._replace(parked=None)
        self.effects.extend(folded.effects)

    def sweep(self, sweep: Sweep) -> None:
        for step in [ParkedStep.TAKE, ParkedStep.MARK][: 2 if sweep.marks else 1]:
            for task_id, rows in self.tasks.items():
                if rows.parked is None:
                    continue
                state = PARKED_MOVES.get((ParkedState(rows.parked.state), step))
                if state is not None:
                    self.tasks[task_id] = rows._replace(parked=rows.parked._replace(state=state.value))


@dataclass(frozen=True)
class Life:
    """A log, and the sweeps by the number of records that were read when they ran."""

    log: list[LogEntry]
    sweeps: dict[int, Sweep]


def without_orphan_renewals(messages: list[Message]) -> list[Message]:
    """A holder renews what it parked before, never the other way round: the table says when."""
    parks: set[str] = set()
    legal = []
    for message in messages:
        if isinstance(message, TaskParked):
            if message.envelope is None and message.attempt not in parks:
                continue
            parks.add(message.attempt)
        legal.append(message)
    return legal


@st.composite
def lives(draw: st.DrawFn) -> Life:
    messages = draw(st.lists(records(), min_size=1, max_size=18))
    doubled = draw(st.lists(st.integers(0, len(messages) - 1), max_size=4))
    messages += [messages[index] for index in doubled]  # a producer's repeat, with a time of its own
    messages = without_orphan_renewals(messages) or [started("t1", "t1-a1")]
    # Clocks of workers disagree: times in the log do not grow evenly.
    stamps = draw(st.lists(st.integers(0, 60), min_size=len(messages), max_size=len(messages)))
    log = [LogEntry(0, stamp, "r", message) for stamp, message in zip(stamps, messages, strict=True)]
    at = st.integers(1, len(log))
    return Life(log, draw(st.dictionaries(at, st.builds(Sweep, st.booleans()), max_size=4)))


def straight(life: Life) -> Rows:
    rows = Rows()
    for index, entry in enumerate(life.log):
        rows.apply([entry])
        if index + 1 in life.sweeps:
            rows.sweep(life.sweeps[index + 1])
    return rows


@st.composite
def crashing_reads(draw: st.DrawFn, life: Life) -> Rows:
    """Reads in batches; after some, the reader dies and begins again from any offset that it had reached.

    A sweep runs when its place in the log is reached first, so batches end there.
    """
    rows, position, reached, crashes = Rows(), 0, 0, 6
    while position < len(life.log):
        end = draw(st.integers(position + 1, len(life.log)))
        end = min([end, *(at for at in life.sweeps if reached < at)])
        end = max(end, position + 1)
        rows.apply(life.log[position:end])
        if end > reached:
            reached = end
            if end in life.sweeps:
                rows.sweep(life.sweeps[end])
        position = end
        if crashes and draw(st.booleans()):
            crashes, position = crashes - 1, draw(st.integers(0, end))
    return rows


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_crashes_batches_and_re_reads_converge_to_the_rows_of_one_straight_read(data: st.DataObject) -> None:
    life = data.draw(lives())
    assert data.draw(crashing_reads(life)).tasks == straight(life).tasks


@given(lives())
@settings(max_examples=150, deadline=None)
def test_the_whole_log_again_changes_no_row_at_any_point(life: Life) -> None:
    rows = Rows()
    for end in range(1, len(life.log) + 1):
        rows.apply(life.log[end - 1 : end])
        if end in life.sweeps:
            rows.sweep(life.sweeps[end])
        before = dict(rows.tasks)
        rows.apply(life.log[:end])
        assert rows.tasks == before


@given(lives())
@settings(max_examples=150, deadline=None)
def test_the_outcome_is_the_first_terminal_record_of_the_log(life: Life) -> None:
    rows = straight(life)
    for task in ("t1", "t2"):
        first = next(
            (
                one.message
                for one in life.log
                if one.message.task_id == task and isinstance(one.message, TERMINAL)
            ),
            None,
        )
        outcome = rows.tasks.get(task, TaskRows()).outcome
        if first is None:
            assert outcome is None
            continue
        assert outcome is not None
        state = {TaskSucceeded: "succeeded", TaskFailed: "failed", TaskClosed: "closed"}[type(first)]
        run = getattr(first, "run", None)
        assert (outcome.state, outcome.attempt) == (state, run.attempt if run else None)


@given(lives())
@settings(max_examples=150, deadline=None)
def test_rows_move_only_as_the_tables_allow(life: Life) -> None:
    rows, before = Rows(), dict[str, TaskRows]()
    for index, entry in enumerate(life.log):
        rows.apply([entry])
        for task, now in rows.tasks.items():
            then = before.get(task, TaskRows())
            attempts_now = [row.attempt for row in now.ledger]
            assert len(attempts_now) == len(set(attempts_now)), "one ledger row per attempt"
            assert attempts_now[: len(then.ledger)] == [row.attempt for row in then.ledger]
            for old, new in zip(then.ledger, now.ledger, strict=False):
                if old.state == LedgerState.ENDED:
                    assert new == old, "an ended row never changes"
                if old.state == LedgerState.LOST:
                    assert new.state != LedgerState.OPEN
            if now.outcome is not None:
                assert now.parked is None, "nothing is parked after a terminal record"
            if then.parked is not None and then.parked.state != ParkedState.PARKED and now.parked is not None:
                unswept = now.parked.state == ParkedState.PARKED
                assert not unswept or now.parked.attempt not in then.parked.seen, (
                    "un-swept by a known attempt"
                )
        if index + 1 in life.sweeps:
            rows.sweep(life.sweeps[index + 1])
        before = dict(rows.tasks)


@given(lives())
@settings(max_examples=200, deadline=None)
def test_a_re_read_owes_at_least_what_was_owed_while_no_outcome_stands(life: Life) -> None:
    """A crash between the transaction and the publishing loses no effect."""
    open_ended = Life([one for one in life.log if not isinstance(one.message, TERMINAL)], {})
    rows = straight(open_ended)
    again = Rows(dict(rows.tasks))
    for entry in open_ended.log:
        again.apply([entry])
    assert {owed_key(effect) for effect in rows.effects} <= {owed_key(effect) for effect in again.effects}
