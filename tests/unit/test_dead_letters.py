"""Dead letters: grouped by what they died of, chosen, and made into new tasks under a name of their own."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_as, encode
from schemas.headers import TaskHeaders
from schemas.messages import RunTask
from schemas.payload import Payload
from services.core.dead_letters import (
    DeadLetter,
    Filter,
    NotReplayable,
    Replay,
    by_cause,
    replay,
    replay_id,
)

NOW_MS = 1_000_000


def letter(
    task_id: str = "task-1",
    reason: str = "out of tries: server_error",
    value: bytes | None = None,
    at_ms: int = 5,
    **headers: str,
) -> DeadLetter:
    task = RunTask(
        task_id=task_id,
        pool="chat-fast",
        tenant="acme",
        stream=True,
        arrived_ms=1,
        body=Payload(inline={"messages": []}),
    )
    carried = TaskHeaders(
        request_id="r", deadline_ms=9, result_partition=3, reply_partition=3, tries=3, hops=2
    )
    own = {"dead_reason": reason, "dead_tries": "3", "dead_origin_topic": "t.tasks.chat-fast.batch"}
    said = {**carried.to_text(), **own, **headers}
    return DeadLetter(0, 7, at_ms, task_id.encode(), encode(task) if value is None else value, said)


def test_letters_that_differ_in_ids_numbers_and_quotes_died_of_the_same() -> None:
    letters = [
        letter(reason=f"RunTask.task_id: {uuid.uuid4()} is no 'x{n}' at byte {n}", at_ms=n) for n in range(3)
    ]
    causes = by_cause([*letters, letter(reason="poison")])
    assert [(cause.count, cause.cause) for cause in causes] == [
        (3, "RunTask.task_id: ID is no '...' at byte N"),
        (1, "poison"),
    ]
    assert (causes[0].first_ms, causes[0].last_ms) == (0, 2)


def test_a_replay_begins_anew_with_its_origin_in_it() -> None:
    made = replay(letter(), None, 1, NOW_MS + 5_000, NOW_MS, partitions=8)
    assert isinstance(made, Replay)
    task = decode_as(RunTask, made.value)
    assert (task.replay_of, task.task_id, task.tenant) == ("task-1", replay_id("task-1", 1), "acme")
    assert task.body.inline == {"messages": []}
    assert not task.stream
    headers = made.headers
    assert (headers.tries, headers.hops, headers.reply_partition) == (0, 0, None)
    assert headers.deadline_ms == NOW_MS + 5_000
    assert 0 <= headers.result_partition < 8


@given(st.text(min_size=1, max_size=40) | st.uuids().map(str), st.integers(1, 50), st.integers(1, 50))
def test_the_same_replay_is_the_same_task_and_another_one_is_not(task_id: str, n: int, m: int) -> None:
    assert (replay_id(task_id, n) == replay_id(task_id, m)) == (n == m)
    assert uuid.UUID(replay_id(task_id, n)).version == 5


def test_what_is_no_task_says_why_it_cannot_be_sent_again() -> None:
    made = replay(letter(value=b"\xff\x00"), None, 1, NOW_MS, NOW_MS, 8)
    assert isinstance(made, NotReplayable)
    assert "not JSON" in made.why
    gone = replay(letter(dead_claim="{}"), None, 1, NOW_MS, NOW_MS, 8)
    assert isinstance(gone, NotReplayable)
    assert "blob store" in gone.why


def test_a_filter_leaves_out_what_it_does_not_name() -> None:
    letters = [letter("a"), letter("b", reason="poison"), letter("c", at_ms=50, tenant="acme")]

    def ids(chosen: Filter) -> list[str]:
        return [one.task_id for one in letters if chosen.takes(one)]

    assert ids(Filter()) == ["a", "b", "c"]
    assert ids(Filter(cause="poison")) == ["b"]
    assert ids(Filter(lane="interactive")) == []
    assert ids(Filter(since_ms=10)) == ["c"]
    assert ids(Filter(tenant="acme")) == ["c"]
    assert ids(Filter(task_id="a", lane="batch")) == ["a"]
