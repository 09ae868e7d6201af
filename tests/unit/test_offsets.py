"""The offset tracker: nothing is committed past unfinished work, nothing finished is forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.done_map import MAX_METADATA_BYTES, SPAN, DoneSet, decode
from services.core.offsets import (
    BelowStartError,
    Commit,
    Completion,
    NeverReceivedError,
    PartitionTracker,
    Received,
)


def committed(tracker: PartitionTracker) -> Commit:
    commit = tracker.commit()
    assert commit is not None
    return commit


def test_watermark_is_the_lowest_received_offset_that_is_not_done() -> None:
    tracker = PartitionTracker(1, 10)
    for offset in (10, 11, 12):
        assert tracker.received(offset) is Received.NEW
    assert tracker.done(11, 1) is Completion.COUNTED
    assert tracker.watermark == tracker.head == 10
    tracker.done(10, 1)
    assert tracker.watermark == tracker.head == 12
    tracker.done(12, 1)
    assert tracker.watermark == 13
    assert tracker.held == 0
    assert tracker.commit() == Commit(13, "")


def test_a_gap_in_the_log_does_not_hold_the_watermark() -> None:
    tracker = PartitionTracker(1, 0)
    tracker.received(3)
    tracker.received(9)
    tracker.done(3, 1)
    assert committed(tracker).offset == 9
    tracker.done(9, 1)
    assert committed(tracker).offset == 10


def test_nothing_is_due_when_nothing_changed() -> None:
    tracker = PartitionTracker(1, 0)
    assert tracker.commit() is None
    tracker.received(0)
    assert tracker.commit() is None
    tracker.done(0, 1)
    assert tracker.uncommitted == 1
    assert tracker.commit() == Commit(1, "")
    assert tracker.commit() is None
    assert tracker.uncommitted == 0


def test_a_commit_that_failed_stays_due() -> None:
    tracker = PartitionTracker(1, 0)
    tracker.received(0)
    tracker.done(0, 1)
    first = tracker.commit()
    tracker.commit_failed()
    assert tracker.commit() == first


def test_a_completion_of_a_lost_assignment_is_ignored() -> None:
    tracker = PartitionTracker(5, 0)
    tracker.received(0)
    assert tracker.done(0, 4) is Completion.STALE
    assert tracker.done(0, 6) is Completion.STALE
    assert tracker.commit() is None
    assert tracker.watermark == 0


def test_a_retained_partition_keeps_what_it_held_and_what_it_finished() -> None:
    tracker = PartitionTracker(1, 0)
    for offset in (0, 1, 2):
        tracker.received(offset)
    tracker.done(1, 1)
    tracker.reassigned(2)
    seen = [tracker.received(offset) for offset in (0, 1, 2, 3)]
    assert seen == [Received.KNOWN, Received.DONE, Received.KNOWN, Received.NEW]
    assert tracker.done(0, 1) is Completion.COUNTED, "the try began before the rebalance, the fact stands"
    assert tracker.done(2, 2) is Completion.COUNTED
    assert tracker.watermark == 3


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    tracker = PartitionTracker(3, 10)
    tracker.received(10)
    with pytest.raises(NeverReceivedError):
        tracker.done(11, 3)
    with pytest.raises(BelowStartError):
        tracker.received(9)
    with pytest.raises(ValueError, match="does not follow"):
        tracker.reassigned(3)
    assert tracker.commit() is None
    assert (tracker.watermark, tracker.held, tracker.epoch) == (10, 1, 3)


def test_an_offset_that_was_taken_for_a_gap_still_holds_the_watermark() -> None:
    tracker = PartitionTracker(1, 0)
    for offset in (0, 5, 3):
        assert tracker.received(offset) is Received.NEW
    tracker.done(0, 1)
    assert tracker.watermark == tracker.head == 3
    tracker.done(5, 1)
    assert tracker.watermark == 3


def test_records_that_were_done_before_a_crash_move_the_commit_on_their_own() -> None:
    tracker = PartitionTracker(1, 100, DoneSet([100, 101]))
    assert tracker.received(100) is Received.DONE
    assert tracker.received(101) is Received.DONE
    assert tracker.commit() == Commit(102, "")


def test_the_span_runs_out_at_a_stuck_head_and_comes_back_with_it() -> None:
    tracker = PartitionTracker(1, 0)
    assert tracker.span_left() == SPAN
    for offset in range(SPAN):
        tracker.received(offset)
        if offset:
            tracker.done(offset, 1)
    assert tracker.span_left() == 0
    commit = committed(tracker)
    assert commit.offset == 0
    assert len(commit.done_map) <= MAX_METADATA_BYTES
    assert set(decode(commit.done_map, 0).done) == set(range(1, SPAN))
    tracker.done(0, 1)
    assert tracker.span_left() == SPAN
    assert tracker.commit() == Commit(SPAN, "")


def test_a_jump_of_the_log_beyond_the_span_loses_nothing() -> None:
    tracker = PartitionTracker(1, 0)
    far = 10**12
    tracker.received(0)
    tracker.received(far)
    assert tracker.span_left() == 0
    tracker.done(far, 1)
    assert tracker.commit() == Commit(0, ""), "what the map can't name is read again after a crash"
    assert tracker.received(far) is Received.DONE
    tracker.done(0, 1)
    assert tracker.commit() == Commit(far + 1, "")


class Partition(RuleBasedStateMachine):
    """A log with gaps, read by a worker that crashes, loses, regains and retains the partition."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []  # offsets that exist
        self.stored = Commit(0, "")  # what the broker holds
        self.finished: set[int] = set()  # acknowledged somewhere else: the truth
        self.epoch = 1
        self.read = 0  # position in `log` of the next record
        self.seen: set[int] = set()  # received in this assignment
        self.tracker = PartitionTracker(1, 0)

    @rule(gap=st.sampled_from([0, 0, 0, 1, 2, 700, 1500]), count=st.integers(1, 40))
    def produce(self, gap: int, count: int) -> None:
        first = (self.log[-1] + 1 if self.log else 0) + gap
        self.log.extend(range(first, first + count))

    @rule(count=st.integers(1, 40))
    def poll(self, count: int) -> None:
        batch = self.log[self.read : self.read + count]
        self.read += len(batch)
        for offset in batch:
            expected = Received.NEW
            if offset in self.finished:
                expected = Received.DONE
            elif offset in self.seen:
                expected = Received.KNOWN
            assert self.tracker.received(offset) is expected
            self.seen.add(offset)

    @precondition(lambda self: self.seen - self.finished)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.seen - self.finished)))
        assert self.tracker.done(offset, self.epoch) is Completion.COUNTED
        self.finished.add(offset)

    @precondition(lambda self: self.seen & self.finished)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.seen & self.finished)))
        assert self.tracker.done(offset, self.epoch) is Completion.AGAIN

    @precondition(lambda self: self.seen - self.finished)
    @rule(data=st.data())
    def finish_under_a_lost_assignment(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.seen - self.finished)))
        before = self.tracker.watermark
        assert self.tracker.done(offset, self.first_epoch() - 1) is Completion.STALE
        assert self.tracker.watermark == before

    @rule(delivered=st.booleans())
    def commit(self, delivered: bool) -> None:
        commit = self.tracker.commit()
        if commit is None:
            return
        if delivered:
            self.stored = commit
        else:
            self.tracker.commit_failed()

    @rule()
    def retained(self) -> None:
        self.epoch += 1
        self.tracker.reassigned(self.epoch)
        self.rewind()

    @rule()
    def lost_and_regained(self) -> None:
        """Also a crash: what was done and not committed runs again."""
        self.epoch += 1
        decoded = decode(self.stored.done_map, self.stored.offset)
        assert decoded.fault is None
        self.tracker = PartitionTracker(self.epoch, self.stored.offset, decoded.done)
        named = {offset for offset in self.log if offset < self.stored.offset} | set(decoded.done)
        assert named <= self.finished, "a commit named as done what is not"
        self.finished = named
        self.seen = set()
        self.rewind()

    def rewind(self) -> None:
        self.read = sum(offset < self.stored.offset for offset in self.log)

    def first_epoch(self) -> int:
        return self.tracker._first_epoch

    @invariant()
    def nothing_unfinished_is_below_the_watermark(self) -> None:
        open_offsets = self.seen - self.finished
        assert all(offset >= self.tracker.watermark for offset in open_offsets)
        assert self.tracker.head == min(open_offsets, default=None)
        assert self.tracker.held == len(open_offsets)

    @invariant()
    def what_the_broker_holds_is_true(self) -> None:
        below = {offset for offset in self.log if offset < self.stored.offset}
        above = set(decode(self.stored.done_map, self.stored.offset).done)
        assert below | above <= self.finished

    def teardown(self) -> None:
        """Read everything, finish everything: everything ends up committed."""
        self.poll(len(self.log) + 1)
        for offset in sorted(self.seen - self.finished, reverse=True):
            self.tracker.done(offset, self.epoch)
            self.finished.add(offset)
        self.stored = self.tracker.commit() or self.stored
        assert all(offset < self.stored.offset for offset in self.log)
        assert self.stored.done_map == ""


Partition.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPartition = Partition.TestCase


@given(st.permutations(range(30)), st.integers(0, 30))
def test_a_restored_tracker_answers_done_for_what_was_done(order: list[int], finished: int) -> None:
    tracker = PartitionTracker(1, 1000)
    for offset in range(1000, 1030):
        tracker.received(offset)
    for step in order[:finished]:
        tracker.done(1000 + step, 1)
    commit = tracker.commit() or Commit(1000, "")
    restored = PartitionTracker(2, commit.offset, decode(commit.done_map, commit.offset).done)
    done = {1000 + step for step in order[:finished]}
    for offset in range(commit.offset, 1030):
        assert (restored.received(offset) is Received.DONE) == (offset in done)
    assert set(range(1000, commit.offset)) <= done
