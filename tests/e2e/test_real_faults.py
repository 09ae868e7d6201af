"""Separate processes on real Apache Kafka are killed, frozen, added or left by their clients: what holds."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.e2e.fault_fleet import (
    WORKER,
    ask,
    ask_streamed,
    body,
    committed,
    everything,
    finished,
    gone,
    outcomes,
    pid_of,
    ready,
    text_of,
    unwritable_results,
)
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOTS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    """One fleet for this module; each test leaves all of its processes running."""
    async with scripted_fleet(tmp_path_factory.mktemp("faults"), "kafka", slots=SLOTS) as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(running: Scripted) -> Scripted:
    """Ready again after whatever the test before has done to it."""
    for name in list(running.stage.services):
        await ready(running, name)
    return running


async def test_q1_a_worker_killed_in_the_middle_of_a_task_loses_nothing(fleet: Scripted) -> None:
    marker = new_marker()
    script = {"id": marker, "tries": [{"text": marker, "delay_s": 60}, {"text": marker}]}
    chat = asyncio.create_task(ask(fleet.stage.url, body(marker, script)))
    await fleet.at_work(marker)
    await asyncio.sleep(0.2)  # past the 50 ms after which a try is announced
    os.kill(pid_of(fleet, WORKER), signal.SIGKILL)

    assert text_of(await chat) == marker
    first, second = await fleet.ended(marker, 2)
    assert (first.outcome, second.outcome) == ("disconnected", "ok")
    rows = {row["attempt"]: row for row in await fleet.ledger(marker, 2)}
    assert set(rows) == {first.attempt, second.attempt}
    assert rows[first.attempt or ""]["state"] == "lost"
    assert rows[second.attempt or ""]["verdict"] == "outcome"
    assert await outcomes(fleet, [marker]) == {marker: ["TaskSucceeded"]}


async def test_q14_refusals_are_waited_out_though_the_worker_is_killed_meanwhile(fleet: Scripted) -> None:
    told_s, deadline_s = 12.0, 24.0  # told: longer than until another worker has the lane
    refusal = {"status": 429, "retry_after": told_s, "delay_s": 3.0}  # all are at work before the first
    *markers, hopeless = [new_marker() for _ in range(SLOTS)]
    limit = {"metadata": {"chimera_deadline_ms": str(int(deadline_s * 1000))}}
    asked = [body(m, {"id": m, "tries": [refusal, {"text": m}]}) for m in markers]
    asked.append(body(hopeless, {"id": hopeless, "tries": [refusal] * 9}) | limit)
    before = await committed(fleet)
    chats = [asyncio.create_task(ask(fleet.stage.url, fields)) for fields in asked]

    async def parked() -> bool | None:
        return True if await committed(fleet) >= before + SLOTS else None  # what is not comes again at once

    await until(parked, "the commit of what was refused")
    assert [len(fleet.attempts(marker)) for marker in (*markers, hopeless)] == [1] * SLOTS
    os.kill(pid_of(fleet, WORKER), signal.SIGKILL)

    *answers, given_up = await asyncio.gather(*chats)
    assert [text_of(answer) for answer in answers] == markers
    assert given_up.status_code >= httpx.codes.BAD_REQUEST
    assert [len(fleet.attempts(marker)) for marker in markers] == [2] * len(markers)
    assert len(fleet.attempts(hopeless)) <= 2, "a third would begin after its deadline"
    for marker in (*markers, hopeless):
        for earlier, later in itertools.pairwise(fleet.attempts(marker)):
            assert earlier.ended_s is not None
            assert later.started_s >= earlier.ended_s + told_s


async def test_q4_a_failure_that_cannot_be_published_stays_uncommitted(fleet: Scripted) -> None:
    marker = new_marker()
    tries = [{"delay_s": 4.0, "status": 429, "retry_after": 2.5}, {"text": marker}]
    before = await committed(fleet)
    chat = asyncio.create_task(ask(fleet.stage.url, body(marker, {"id": marker, "tries": tries})))
    await fleet.at_work(marker)
    async with unwritable_results(fleet):
        await fleet.at_work(marker)  # still: nothing was said of its end before
        await fleet.ended(marker)
        for _ in range(10):  # many commit intervals
            await asyncio.sleep(0.2)
            assert await committed(fleet) == before
        assert len(fleet.attempts(marker)) == 1

    assert text_of(await chat) == marker

    async def done() -> bool | None:
        return True if await committed(fleet) > before else None

    await until(done, "the commit of what was finished")
    assert await outcomes(fleet, [marker]) == {marker: ["TaskSucceeded"]}


async def test_q5_a_second_worker_joins_under_load_and_nothing_runs_twice(fleet: Scripted) -> None:
    markers: list[str] = []
    chats: list[asyncio.Task[httpx.Response]] = []

    async def load() -> None:
        """More than the slots of one worker can do: something runs and something waits at any time."""
        while True:
            marker = new_marker()
            markers.append(marker)
            fields = body(marker, {"text": marker, "delay_s": 0.6})
            chats.append(asyncio.create_task(ask(fleet.stage.url, fields)))
            await asyncio.sleep(0.12)

    loading = asyncio.create_task(load())
    try:
        await fleet.stage.start_another(WORKER, "worker-second")
        await asyncio.sleep(2.0)
        pid = str(pid_of(fleet, "worker-second"))
        loading.cancel()
        assert await finished(chats) == markers
        rows = [row for marker in markers for row in await fleet.ledger(marker)]
        assert any(pid in row["worker"].split("-") for row in rows)  # it took its share
    finally:
        loading.cancel()
        await fleet.stage.services.pop("worker-second").stop()
    for marker in markers:
        assert [one.outcome for one in fleet.attempts(marker)] == ["ok"], marker
    assert set(map(tuple, (await outcomes(fleet, markers)).values())) == {("TaskSucceeded",)}


async def test_q8_a_worker_told_to_stop_starts_nothing_and_finishes_what_runs(fleet: Scripted) -> None:
    markers = [new_marker() for _ in range(3 * SLOTS)]
    chats = [
        asyncio.create_task(ask(fleet.stage.url, body(marker, {"text": marker, "delay_s": 3.0})))
        for marker in markers
    ]

    async def full() -> bool | None:
        return True if len(await fleet.server.running_attempts()) == SLOTS else None

    await until(full, "all slots taken")
    at_work = {one.marker for one in await fleet.server.running_attempts()}
    pid = pid_of(fleet, WORKER)
    os.kill(pid, signal.SIGTERM)
    await gone(pid)
    assert {one.marker for one in fleet.server.log() if one.marker in markers} == at_work

    assert await finished(chats) == markers
    for marker in markers:
        assert [one.outcome for one in fleet.attempts(marker)] == ["ok"], marker
    assert set(map(tuple, (await outcomes(fleet, markers)).values())) == {("TaskSucceeded",)}


async def test_q12_each_reply_reaches_the_ingress_that_asked(fleet: Scripted) -> None:
    port = await fleet.stage.start_another("ingress", "ingress-second")
    try:
        urls = [fleet.stage.url, f"http://127.0.0.1:{port}"]
        script = {"chunks": 4, "chunk_interval_s": 0.05}
        whole = {new_marker(): urls[n % 2] for n in range(12)}
        streamed = {new_marker(): urls[n % 2] for n in range(12)}
        answers = await asyncio.gather(*(ask(url, body(m, script | {"text": m})) for m, url in whole.items()))
        assert [text_of(answer) for answer in answers] == list(whole)
        texts = await asyncio.gather(
            *(
                ask_streamed(url, body(m, script | {"text": f"a {m} b"}, stream=True))
                for m, url in streamed.items()
            )
        )
        assert texts == [f"a {marker} b" for marker in streamed]
    finally:
        await fleet.stage.services.pop("ingress-second").stop()
    for marker in (*whole, *streamed):
        assert len(fleet.attempts(marker)) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_s5_the_model_stops_when_its_client_hangs_up(fleet: Scripted, stream: bool) -> None:
    marker = new_marker()
    script = {"text": "word " * 600, "chunks": 600, "chunk_interval_s": 0.1}
    chat = asyncio.create_task(ask(fleet.stage.url, body(marker, script, stream=stream)))
    await until(lambda: _chunks_reach(fleet, marker, 3), "the answer under way")
    left_at = time.time()
    chat.cancel()
    await asyncio.gather(chat, return_exceptions=True)

    async def stopped() -> float | None:
        ended = fleet.attempts(marker)
        return ended[0].ended_s if ended else None

    ended_s = await until(stopped, "the end of the try", patience_s=10.0)
    assert fleet.attempts(marker)[0].outcome == "disconnected"
    assert ended_s >= left_at
    (row,) = await fleet.ledger(marker)
    assert row["attempt"] == fleet.attempts(marker)[0].attempt
    assert await outcomes(fleet, [marker]) == {marker: ["TaskClosed"]}


async def test_s5_what_was_still_queued_never_runs(fleet: Scripted) -> None:
    blockers, queued, after = [new_marker() for _ in range(SLOTS)], new_marker(), new_marker()
    chats = [
        asyncio.create_task(ask(fleet.stage.url, body(marker, {"text": marker, "delay_s": 4.0})))
        for marker in blockers
    ]
    for marker in blockers:
        await fleet.at_work(marker)
    leaving = asyncio.create_task(ask(fleet.stage.url, body(queued)))
    await until(lambda: _on_a_lane(fleet, queued), "the record of the task that will be left")
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert await finished(chats) == blockers
    assert text_of(await ask(fleet.stage.url, body(after))) == after

    async def closed() -> bool | None:
        return True if (await outcomes(fleet, [queued]))[queued] == ["TaskClosed"] else None

    await until(closed, "the end of the task that nobody waits for")
    assert fleet.attempts(queued) == []


async def test_q7_work_goes_on_after_the_broker_restarts(fleet: Scripted) -> None:
    under_way = new_marker()
    script = {"text": under_way, "delay_s": 3.0}
    chat = asyncio.create_task(ask(fleet.stage.url, body(under_way, script)))
    await fleet.at_work(under_way)
    await fleet.stage.broker.kill()
    await fleet.ended(under_way)
    await asyncio.sleep(6.0)  # longer than an acknowledgement is waited for: its end must be sent again
    await fleet.stage.broker.start()

    assert text_of(await chat) == under_way
    assert await _answered_again(fleet) != ""
    assert (await outcomes(fleet, [under_way]))[under_way][:1] == ["TaskSucceeded"]


async def test_q7_work_goes_on_after_the_broker_was_silent(fleet: Scripted) -> None:
    under_way = new_marker()
    chat = asyncio.create_task(ask(fleet.stage.url, body(under_way, {"text": under_way, "delay_s": 3.0})))
    await fleet.at_work(under_way)
    fleet.stage.broker.freeze()
    await asyncio.sleep(8.0)  # beyond the session time-out of the worker's groups
    fleet.stage.broker.thaw()

    assert text_of(await chat) == under_way
    assert await _answered_again(fleet) != ""
    assert (await outcomes(fleet, [under_way]))[under_way][:1] == ["TaskSucceeded"]


async def _chunks_reach(fleet: Scripted, marker: str, count: int) -> bool | None:
    running = await fleet.server.running_attempts()
    return any(one.marker == marker and one.chunks >= count for one in running) or None


async def _on_a_lane(fleet: Scripted, marker: str) -> bool | None:
    return marker in (await everything(fleet)).accepted.values() or None


async def _answered_again(fleet: Scripted) -> str:
    """The text of a new chat; one that was refused meanwhile (503) may be sent again."""

    async def look() -> str | None:
        marker = new_marker()
        answer = await ask(fleet.stage.url, body(marker))
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        assert text_of(answer) == marker
        return marker

    return await until(look, "an answer to a new chat")
