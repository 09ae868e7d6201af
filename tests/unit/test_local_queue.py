"""The local queue: order, bounds and pruning."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.lanes import WAIT_BOUND_S, WEIGHTS, LanePicker
from services.core.local_queue import LocalQueue, Queued


def queue() -> LocalQueue[str]:
    return LocalQueue(LanePicker())


def entry(
    task_id: str,
    lane: str = "standard",
    *,
    partition: tuple[str, int] = ("tasks", 0),
    queued_s: float = 0.0,
    deadline_s: float = 1000.0,
    not_before_s: float | None = None,
    rank: float = 0.0,
    tenant: str = "default",
    tokens: float = 0.0,
) -> Queued[str]:
    body = f"body of {task_id}"
    return Queued(task_id, lane, partition, queued_s, deadline_s, body, not_before_s, rank, tenant, tokens)


def drained(held: LocalQueue[str], now_s: float = 0.0) -> list[str]:
    order = []
    while (popped := held.pop(now_s)) is not None:
        order.append(popped.task_id)
    return order


def test_first_in_first_out_within_a_lane() -> None:
    held = queue()
    for task_id in "dacb":
        held.push(entry(task_id))
    assert drained(held) == list("dacb")


def test_rank_goes_before_arrival() -> None:
    held = queue()
    for task_id, rank in (("late", 2.0), ("early", 1.0), ("later", 2.0)):
        held.push(entry(task_id, rank=rank))
    assert drained(held) == ["early", "late", "later"]


def test_high_priority_overtakes() -> None:
    held = queue()
    for number in range(20):
        held.push(entry(f"b{number}", "batch"))
    held.push(entry("i", "interactive"))
    assert "i" in drained(held)[:2]


def test_a_cancelled_head_blocks_nothing() -> None:
    held = queue()
    held.push(entry("head"))
    held.push(entry("next"))
    removed = held.remove("head")
    assert removed is not None
    assert removed.item == "body of head"
    assert held.remove("head") is None
    assert drained(held) == ["next"]


def test_what_reached_its_deadline_is_taken_out_whatever_it_waits_for() -> None:
    held = queue()
    held.push(entry("ready", deadline_s=5.0))
    held.push(entry("delayed", deadline_s=5.0, not_before_s=4.0))
    held.push(entry("living", deadline_s=5.1))
    assert held.expired(4.9) == []
    assert {gone.task_id for gone in held.expired(5.0)} == {"ready", "delayed"}
    assert drained(held, 5.0) == ["living"]


def test_a_revoked_partition_leaves_with_everything_it_brought() -> None:
    held = queue()
    held.push(entry("a", partition=("tasks", 0)))
    held.push(entry("b", partition=("tasks", 1)))
    held.push(entry("c", partition=("tasks", 0), not_before_s=9.0))
    assert [gone.task_id for gone in held.drop_partition(("tasks", 0))] == ["a", "c"]
    assert held.drop_partition(("tasks", 0)) == []
    assert held.next_due() is None
    assert drained(held) == ["b"]


def test_a_delayed_retry_is_eligible_at_its_time() -> None:
    held = queue()
    held.push(entry("second", not_before_s=2.0))
    held.push(entry("first", not_before_s=1.0))
    assert held.next_due() == 1.0
    assert held.pop(0.9) is None
    popped = held.pop(1.0)
    assert popped is not None
    assert popped.task_id == "first"
    assert held.next_due() == 2.0
    held.remove("second")
    assert held.next_due() is None


def test_a_refused_push_changes_nothing() -> None:
    held = queue()
    held.push(entry("a"))
    with pytest.raises(ValueError, match="queued already"):
        held.push(entry("a", "batch"))
    with pytest.raises(KeyError):
        held.push(entry("b", "urgent"))
    assert (len(held), drained(held)) == (1, ["a"])


def test_a_lane_that_waited_since_before_the_first_pick_goes_first() -> None:
    held = queue()
    held.push(entry("b", "batch", queued_s=0.0))
    for number in range(20):
        held.push(entry(f"i{number}", "interactive", queued_s=9.0))
    popped = held.pop(9.0)
    assert popped is not None
    assert popped.task_id == "b"


def test_a_delayed_retry_waits_from_its_time_on_not_from_when_it_was_noticed() -> None:
    held = queue()
    held.push(entry("b", "batch", not_before_s=0.0))
    held.push(entry("i", "interactive", queued_s=9.0))
    popped = held.pop(9.0)
    assert popped is not None
    assert popped.task_id == "b"


def test_what_left_is_not_kept_alive_by_its_deadline() -> None:
    held = queue()
    for number in range(20_000):
        held.push(entry(str(number), deadline_s=86_400.0))
        held.pop(0.0)
    assert len(held._deadlines) < 3_000


class Model(RuleBasedStateMachine):
    """Against a plain list: every envelope leaves exactly once, in order, and never before its time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = LocalQueue[str](LanePicker())
        self.model: dict[str, Queued[str]] = {}
        self.now_s = 0.0
        self.count = 0

    @rule(
        lane=st.sampled_from(list(WEIGHTS)),
        partition=st.integers(0, 2),
        life_s=st.integers(1, 20),
        delay_s=st.none() | st.integers(0, 10),
    )
    def push(self, lane: str, partition: int, life_s: int, delay_s: int | None) -> None:
        self.count += 1
        pushed = entry(
            f"t{self.count}",
            lane,
            partition=("tasks", partition),
            queued_s=self.now_s,
            deadline_s=self.now_s + life_s,
            not_before_s=None if delay_s is None else self.now_s + delay_s,
        )
        self.held.push(pushed)
        self.model[pushed.task_id] = pushed

    def eligible(self, lane: str) -> list[Queued[str]]:
        return [
            kept
            for kept in self.model.values()
            if kept.lane == lane and (kept.not_before_s is None or kept.not_before_s <= self.now_s)
        ]

    @rule(gap_s=st.sampled_from([0.0, 0.25, 0.5, 3.0]))
    def pop(self, gap_s: float) -> None:
        self.now_s += gap_s
        popped = self.held.pop(self.now_s)
        waiting = {lane for lane in WEIGHTS if self.eligible(lane)}
        if popped is None:
            assert not waiting
            return
        assert popped is self.eligible(popped.lane)[0]
        del self.model[popped.task_id]

    @rule(number=st.integers(1, 60))
    def remove(self, number: int) -> None:
        assert self.held.remove(f"t{number}") is self.model.pop(f"t{number}", None)

    @rule(gap_s=st.integers(0, 5))
    def expire(self, gap_s: int) -> None:
        self.now_s += gap_s
        gone = {each.task_id for each in self.held.expired(self.now_s)}
        assert gone == {kept.task_id for kept in self.model.values() if kept.deadline_s <= self.now_s}
        for task_id in gone:
            del self.model[task_id]

    @rule(partition=st.integers(0, 2))
    def revoke(self, partition: int) -> None:
        gone = [each.task_id for each in self.held.drop_partition(("tasks", partition))]
        assert gone == [
            kept.task_id for kept in self.model.values() if kept.partition == ("tasks", partition)
        ]
        for task_id in gone:
            del self.model[task_id]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.held) == len(self.model)
        assert all(task_id in self.held for task_id in self.model)


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestModel = Model.TestCase


def test_a_batch_task_starts_within_the_bound_under_a_flood() -> None:
    """Q9: one slot comes free every half second, interactive work never ends."""
    held = queue()
    held.push(entry("b", "batch"))
    now_s, number = 0.0, 0
    while now_s <= WAIT_BOUND_S:
        number += 1
        held.push(entry(f"i{number}", "interactive", queued_s=now_s))
        popped = held.pop(now_s)
        if popped is not None and popped.task_id == "b":
            return
        now_s += 0.5
    pytest.fail("the batch task was not started within the bound")
