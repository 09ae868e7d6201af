"""The local queue: what goes ahead of all, lanes that are barred, and tenants."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.core.lanes import WEIGHTS
from services.core.local_queue import Queued
from tests.unit.test_local_queue import drained, entry, queue


def test_what_is_put_ahead_starts_first_whatever_it_waits_for() -> None:
    held = queue()
    for task_id, delay_s in (("a", None), ("b", None), ("c", 50.0)):
        held.push(entry(task_id, "interactive", not_before_s=delay_s))
    held.push(entry("z", "batch"))
    assert held.put_ahead("z")
    assert held.put_ahead("c")
    assert not held.put_ahead("unknown")
    assert held.is_ahead("c")
    assert held.eligible("interactive") == 2
    assert drained(held) == ["z", "c", "a", "b"]


def test_what_is_put_ahead_can_still_be_cancelled_revoked_and_expire() -> None:
    held = queue()
    for number, task_id in enumerate("abcd"):
        held.push(entry(task_id, partition=("tasks", number), deadline_s=5.0 if task_id == "a" else 9.0))
        held.put_ahead(task_id)
    assert held.next_deadline() == 5.0
    assert [gone.task_id for gone in held.expired(5.0)] == ["a"]
    assert held.remove("b") is not None
    assert [gone.task_id for gone in held.drop_partition(("tasks", 2))] == ["c"]
    assert held.most_urgent("standard") is None
    assert held.next_deadline() == 9.0
    assert drained(held, 6.0) == ["d"]
    assert held.next_deadline() is None


def test_nothing_of_a_barred_lane_starts_put_ahead_or_not() -> None:
    held = queue()
    held.push(entry("b", "batch"))
    held.push(entry("s", "standard"))
    held.put_ahead("b")
    assert held.pop(0.0, ("standard", "batch")) is None
    held.push(entry("i", "interactive"))
    popped = held.pop(0.0, ("standard", "batch"))
    assert popped is not None
    assert popped.task_id == "i"
    assert drained(held) == ["b", "s"]


def test_tenants_take_turns_by_what_they_cost() -> None:
    held = queue()
    for number in range(6):
        held.push(entry(f"big{number}", tenant="big", tokens=20.0))
        held.push(entry(f"small{number}", tenant="small", tokens=10.0))
    order = [task_id[:-1] for task_id in drained(held)[:6]]
    assert order.count("small") == 2 * order.count("big")


def test_a_tenant_pays_for_what_was_used_not_for_what_was_predicted() -> None:
    held = queue()
    for tenant in ("wrong", "right"):
        for number in range(4):
            held.push(entry(f"{tenant}{number}", tenant=tenant, tokens=10.0))
    for _ in range(2):
        popped = held.pop(0.0)
        assert popped is not None
        held.settle(popped, 100.0 if popped.tenant == "wrong" else 10.0)
    assert [task_id[:-1] for task_id in drained(held)[:3]] == ["right"] * 3


def test_who_is_next_and_who_is_most_urgent_can_be_seen() -> None:
    held = queue()
    held.push(entry("first", deadline_s=50.0))
    held.push(entry("urgent", deadline_s=5.0))
    held.push(entry("delayed", deadline_s=1.0, not_before_s=0.5))
    seen = held.first("standard"), held.most_urgent("standard")
    assert [each.task_id for each in seen if each] == ["first", "urgent"]
    held.remove("urgent")
    left = held.most_urgent("standard")
    assert left is not None
    assert left.task_id == "first"
    assert held.first("batch") is None


class Shared(RuleBasedStateMachine):
    """Tenants, lanes, barred ones, what is put ahead, against plain lists: nothing is lost or started twice,
    a tenant's own work keeps its order, and what is ahead goes first."""

    def __init__(self) -> None:
        super().__init__()
        self.held = queue()
        self.model: dict[str, Queued[str]] = {}
        self.ahead: list[str] = []
        self.running: list[Queued[str]] = []
        self.count = 0

    @rule(
        lane=st.sampled_from(list(WEIGHTS)),
        tenant=st.sampled_from("xyz"),
        rank=st.integers(0, 3),
        tokens=st.integers(0, 50),
        delayed=st.booleans(),
    )
    def push(self, lane: str, tenant: str, rank: int, tokens: int, delayed: bool) -> None:
        self.count += 1
        due_s = 1e6 if delayed else None
        pushed = entry(
            f"t{self.count}",
            lane,
            rank=rank,
            tenant=tenant,
            tokens=tokens,
            not_before_s=due_s,
            deadline_s=2e6,
        )
        self.held.push(pushed)
        self.model[pushed.task_id] = pushed

    @rule(number=st.integers(1, 60))
    def put_ahead(self, number: int) -> None:
        task_id = f"t{number}"
        assert self.held.put_ahead(task_id) == (task_id in self.model)
        if task_id in self.model and task_id not in self.ahead:
            self.ahead.append(task_id)

    @rule(number=st.integers(1, 60))
    def remove(self, number: int) -> None:
        task_id = f"t{number}"
        assert self.held.remove(task_id) is self.model.pop(task_id, None)
        self.ahead = [kept for kept in self.ahead if kept != task_id]

    @rule(barred=st.sampled_from([(), ("batch",), ("standard", "batch")]))
    def pop(self, barred: tuple[str, ...]) -> None:
        first = next((one for one in self.ahead if self.model[one].lane not in barred), None)
        popped = self.held.pop(0.0, barred)
        if first is not None:
            assert popped is self.model[first]
            self.ahead.remove(first)
        else:
            ready = [
                kept
                for kept in self.model.values()
                if kept.lane not in barred and kept.not_before_s is None and kept.task_id not in self.ahead
            ]
            assert (popped is None) == (not ready)
            if popped is None:
                return
            own = [kept for kept in ready if (kept.lane, kept.tenant) == (popped.lane, popped.tenant)]
            assert popped is min(own, key=lambda kept: kept.rank)
        assert popped is not None
        del self.model[popped.task_id]
        self.running.append(popped)

    @rule(used=st.integers(0, 100))
    def settle(self, used: int) -> None:
        if self.running:
            self.held.settle(self.running.pop(0), float(used))

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.held) == len(self.model)
        for lane in WEIGHTS:
            waits = [kept for kept in self.model.values() if kept.lane == lane and kept.not_before_s is None]
            assert self.held.eligible(lane) == sum(kept.task_id not in self.ahead for kept in waits)


Shared.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestShared = Shared.TestCase
