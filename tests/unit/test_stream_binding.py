"""A stream never splices two attempts, whatever arrives in whatever order, and repairs only from its own."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from schemas.failures import FailureKind
from schemas.messages import Failure, ReplyChunk, TaskClosed, TaskFailed, TaskSucceeded, Try, Usage
from schemas.payload import Payload
from services.core.assembly import Assembly
from services.core.stream_binding import INTERRUPTED, Broken, Completed, Event, Step, StreamBinding
from services.core.stream_rebuild import Sent, remaining_events

TEXTS = {"a": ["Al", "pha", " and", " more"], "b": ["Be", "ta", "!"]}


def event(text: str | None = None, finish: str | None = None, **fields: Any) -> Event:
    content = {"content": text} if text is not None else {}
    choice = {"index": 0, "delta": {**content, **fields}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def chunks_of(attempt: str) -> list[ReplyChunk]:
    events = [event("", role="assistant"), *map(event, TEXTS[attempt]), event(finish="stop")]
    return [ReplyChunk(task_id="t", attempt=attempt, seq=i, events=[e]) for i, e in enumerate(events)]


def run(attempt: str) -> Try:
    return Try(attempt=attempt, worker="w", pool="p", model="m", started_ms=1)


def answer(attempt: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(TEXTS[attempt])}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}


def success(attempt: str) -> TaskSucceeded:
    return TaskSucceeded(
        task_id="t",
        run=run(attempt),
        ended_ms=2,
        usage=Usage(),
        answer=Payload(inline=answer(attempt)),
        chunks=len(chunks_of(attempt)),
    )


def failure(attempt: str | None, said: dict[str, Any] | None = None, chunks: int = 0) -> TaskFailed:
    return TaskFailed(
        task_id="t",
        run=run(attempt) if attempt else None,
        ended_ms=2,
        failure=Failure(kind=FailureKind.INTERRUPTED, message="broke"),
        chunks=chunks,
        answer=Payload(inline=said) if said else None,
    )


def text_of(events: list[Event]) -> str:
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


class Client:
    """What a client has been sent, and how its stream ended."""

    def __init__(self) -> None:
        self.binding = StreamBinding(include_usage=False)
        self.events: list[Event] = []
        self.ends: list[Completed | Broken] = []
        self.missing = False

    def take(self, step: Step) -> None:
        assert not (self.ends and (step.events or step.end)), "nothing follows an end"
        self.events += step.events
        self.missing = self.missing or step.missing
        if step.end is not None:
            self.ends.append(step.end)

    @property
    def text(self) -> str:
        return text_of(self.events)


SOURCES = st.lists(st.sampled_from(["a", "b", "results", "lost a", "lost b"]), max_size=20)


@given(st.sampled_from(["a", "b"]), SOURCES)
def test_no_order_of_records_splices_two_attempts(winner: str, sources: list[str]) -> None:
    """Chunks in order by attempt, records in order of `results`; the two topics interleave in any way."""
    client = Client()
    replies = {name: iter(chunks_of(name)) for name in TEXTS}
    results = iter([("started", "a"), ("started", "b"), ("success", winner)])
    for source in [*sources, "results", "results", "results"]:
        if source == "results":
            kind, name = next(results, ("", ""))
            if kind:
                started = kind == "started"
                client.take(
                    client.binding.started(name) if started else client.binding.outcome(success(name))
                )
        else:
            chunk = next(replies[source[-1]], None)
            if chunk is not None and not source.startswith("lost"):
                client.take(client.binding.chunk(chunk))
        assert any("".join(parts).startswith(client.text) for parts in TEXTS.values())
    if not client.ends:
        assert client.missing
        client.take(client.binding.repair(answer(winner)))
    assert len(client.ends) == 1
    if isinstance(client.ends[0], Completed):
        assert client.text == "".join(TEXTS[winner])
        assert client.events[-1]["choices"][0]["finish_reason"] == "stop"


@given(st.permutations(range(6)))
def test_chunks_of_one_attempt_come_out_in_order(order: list[int]) -> None:
    client, chunks = Client(), chunks_of("a")
    for seq in order:
        client.take(client.binding.chunk(chunks[seq]))
        client.take(client.binding.chunk(chunks[seq]))  # a repeated record changes nothing
    client.take(client.binding.outcome(success("a")))
    assert client.text == "Alpha and more"
    assert client.ends == [Completed(success("a"))]


def test_frames_without_content_are_held_until_there_is_some() -> None:
    client, chunks = Client(), chunks_of("a")
    client.take(client.binding.chunk(chunks[0]))
    assert client.events == []
    client.take(client.binding.chunk(chunks[1]))
    assert client.events == [chunks[0].events[0], chunks[1].events[0]]


def test_an_empty_answer_still_ends_with_its_finish_reason() -> None:
    client = Client()
    frames = [event("", role="assistant"), event(finish="stop")]
    client.take(client.binding.chunk(ReplyChunk(task_id="t", attempt="a", seq=0, events=frames)))
    client.take(client.binding.outcome(success("a").model_copy(update={"chunks": 1})))
    assert client.events == frames
    assert isinstance(client.ends[0], Completed)


def test_a_start_that_is_read_late_does_not_interrupt_a_later_attempt() -> None:
    """The two topics are not in step: b's content may be read before a's start, which lies before b's."""
    client = Client()
    for chunk in chunks_of("b")[:2]:
        client.take(client.binding.chunk(chunk))
    client.take(client.binding.started("a"))
    client.take(client.binding.started("b"))
    assert not client.binding.started("b").doubt
    assert client.binding.started("c").doubt
    assert not client.binding.started("d").doubt, "the log is asked once"


def test_content_of_a_superseded_attempt_is_not_followed() -> None:
    client = Client()
    client.take(client.binding.started("a"))
    client.take(client.binding.started("b"))
    for chunk in chunks_of("a"):
        client.take(client.binding.chunk(chunk))
    assert client.events == []
    client.take(client.binding.outcome(success("a")))  # it won all the same: all of it is there
    assert client.text == "Alpha and more"


def test_content_read_before_its_start_is_delivered_at_the_start() -> None:
    client = Client()
    client.take(client.binding.started("a"))
    client.take(client.binding.started("b"))
    for chunk in chunks_of("a")[:3]:
        client.take(client.binding.chunk(chunk))
    for chunk in chunks_of("b")[:2]:
        client.take(client.binding.chunk(chunk))
    assert client.binding.attempt == "b"


def test_a_failure_after_content_is_told_after_what_was_said() -> None:
    client = Client()
    for chunk in chunks_of("a")[:2]:
        client.take(client.binding.chunk(chunk))
    said = answer("a")
    said["choices"][0] |= {"message": {"role": "assistant", "content": "Alpha"}, "finish_reason": None}
    client.take(client.binding.outcome(failure("a", said, chunks=3)))
    assert client.missing
    client.take(client.binding.repair(said))
    assert client.text == "Alpha"
    assert isinstance(client.ends[0], Broken)
    assert not client.ends[0].close


def test_a_close_ends_the_stream_and_needs_no_other() -> None:
    client = Client()
    client.take(client.binding.chunk(chunks_of("a")[1].model_copy(update={"seq": 0})))
    client.take(client.binding.outcome(TaskClosed(task_id="t", reason="poison", by="x", ended_ms=1)))
    assert isinstance(client.ends[0], Broken)
    assert not client.ends[0].close


def test_the_death_of_its_worker_asks_the_log_about_what_has_content_and_no_outcome() -> None:
    waits, follows, decided = Client(), Client(), Client()
    waits.take(waits.binding.chunk(chunks_of("a")[0]))  # a role is no content
    assert not waits.binding.worker_died().doubt, "another attempt takes over"
    for client in (follows, decided):
        for chunk in chunks_of("a")[:2]:
            client.take(client.binding.chunk(chunk))
    decided.take(decided.binding.outcome(success("a")))
    assert not decided.binding.worker_died().doubt, "its missing chunks are repaired from the outcome"
    assert follows.binding.worker_died().doubt


@given(st.sampled_from(["worker died", "another starts"]), st.booleans())
def test_in_doubt_the_first_terminal_record_ends_the_stream(cause: str, whole: bool) -> None:
    """What the attempt wrote before it was given up may stand before the close, or behind it."""
    client = Client()
    client.take(client.binding.started("a"))
    for chunk in chunks_of("a")[:2]:
        client.take(client.binding.chunk(chunk))
    assert (client.binding.worker_died() if cause == "worker died" else client.binding.started("b")).doubt
    closed = TaskClosed(task_id="t", reason="interrupted", by="x", ended_ms=1)
    for record in (success("a"), closed) if whole else (closed, success("a")):
        client.take(client.binding.outcome(record))
    if whole:
        client.take(client.binding.repair(answer("a")))
        assert client.text == "Alpha and more"
        assert isinstance(client.ends[0], Completed)
    else:
        assert client.ends == [Broken(INTERRUPTED)]
        assert client.text == "Al"


DELTAS = st.lists(
    st.one_of(
        st.builds(lambda t: {"content": t}, st.text(max_size=6)),
        st.builds(lambda t: {"reasoning_content": t}, st.text(max_size=6)),
        st.builds(
            lambda i, t: {"tool_calls": [{"index": i, "function": {"arguments": t}}]},
            st.integers(0, 1),
            st.text(max_size=6),
        ),
    ),
    max_size=8,
)


@given(DELTAS, st.integers(0, 10), st.booleans())
def test_s7_any_cut_of_a_stream_is_completed_to_the_same_answer(
    deltas: list[dict[str, Any]], cut: int, finished: bool
) -> None:
    """Text, reasoning and parallel tool calls: what was sent and what is rebuilt make the whole again."""
    opening = [
        event(tool_calls=[{"index": i, "id": f"c{i}", "type": "function", "function": {"name": f"f{i}"}}])
        for i in (0, 1)
        if any("tool_calls" in d for d in deltas)
    ]
    events = [event("", role="assistant"), *opening, *(event(**d) for d in deltas)]
    events += [event(finish="stop")] if finished else []
    whole = assembled(events)
    sent = Sent()
    for one in events[:cut]:
        sent.add(one)
    assert assembled(events[:cut] + remaining_events(whole, sent)) == whole


def assembled(events: list[Event]) -> dict[str, Any]:
    assembly = Assembly("chat", "x", "m")
    for one in events:
        assembly.add(one)
    return assembly.answer()
