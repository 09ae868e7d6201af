"""Backends that hang, break, refuse and come back, behind one worker (CASES R2, R3, R4, S3)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from loadtest.model_server.process import ModelServerProcess
from schemas.failures import FailureKind
from schemas.headers import SWEPT, TaskHeaders, to_text
from schemas.messages import AttemptFailed, TaskFailed, TaskSucceeded
from services.core.fleet import BreakerLaw
from tests.integration.backend_rig import QUICK, SEVERAL, backend_rig, backends_of, state_of
from tests.integration.worker_rig import NAMES, scripted, text_of, tries, until

CALM = replace(SEVERAL, breaker=replace(QUICK, cooldown_s=60, cooldown_most_s=60))


async def test_r4_a_backend_that_hangs_blocks_no_other(server: ModelServerProcess, tmp_path: Path) -> None:
    # patient enough for the good one on a loaded machine
    pool = replace(CALM, timeouts=replace(CALM.timeouts, first_token_s=2.0))
    async with (
        ModelServerProcess(delay_s=60) as hung,
        backend_rig([hung.root_url, server.root_url], tmp_path, pool) as rig,
    ):
        await rig.work()
        # the quick one may do nearly all of a wave before the hung one has its share of it
        for _ in range(QUICK.min_calls):
            tasks = [await rig.submit(scripted(text="good")) for _ in range(40)]
            for task in tasks:
                assert text_of(await rig.answer(task)) == "good"
        assert (state_of(rig).breaker, state_of(rig).health) == ("open", "unavailable")
        assert state_of(rig, 1).health == "healthy"
        # those it was given until its silence was seen, and nothing since
        assert len(hung.log()) < QUICK.min_calls + pool.slots
        kinds = {each.failure.kind for each in rig.of(AttemptFailed)}
        assert kinds == {FailureKind.FIRST_TOKEN_TIMEOUT}
        assert backends_of(rig).callable_at_s() <= 0


async def test_r4_silence_shows_long_before_the_time_out(server: ModelServerProcess, tmp_path: Path) -> None:
    """One that froze after it was known to be quick is slow at once, and gets no new work."""
    pool = replace(CALM, slots=8, timeouts=replace(CALM.timeouts, first_token_s=20))
    async with (
        ModelServerProcess(chunks=4) as other,
        backend_rig([other.root_url, server.root_url], tmp_path, pool) as rig,
    ):
        await rig.work()
        for task in [await rig.submit() for _ in range(60)]:
            assert isinstance(await rig.end(task), TaskSucceeded)
        other.freeze()
        try:
            lost = [await rig.submit(deadline_s=8) for _ in range(4)]
            await until(lambda: state_of(rig).health == "slow")
            waiting = state_of(rig).in_flight
            later = [await rig.submit() for _ in range(20)]
            for task in later:
                assert isinstance(await rig.end(task), TaskSucceeded)
            assert state_of(rig).in_flight == waiting
        finally:
            other.thaw()
        for task in lost:
            await rig.end(task)


async def test_r3_a_callers_mistakes_cancels_and_deadlines_never_open_the_breaker(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with backend_rig([server.root_url], tmp_path, CALM) as rig:
        await rig.work()
        wrong = [await rig.submit(scripted(status=status)) for status in (400, 413, 422) for _ in range(5)]
        late = [await rig.submit(scripted(delay_s=5), deadline_s=0.2) for _ in range(4)]
        gone = [await rig.submit(scripted(delay_s=0.35)) for _ in range(4)]
        for task in wrong + late:
            assert isinstance(await rig.end(task), TaskFailed)
        for task in gone:
            await rig.cancel(task)
        await until(lambda: rig._workers[0].worker.held() == 0)
        assert state_of(rig).breaker == "closed"
        assert isinstance(await rig.end(await rig.submit()), TaskSucceeded)


async def test_r3_faults_of_streams_open_it_at_the_streams_end(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with backend_rig([server.root_url], tmp_path, CALM) as rig:
        await rig.work()
        script = {"chunks": 4, "chunk_interval_s": 0.1, "reset_after_chunks": 3}
        for number in range(QUICK.min_calls):
            task = await rig.submit(scripted(**script), stream=True)
            await until(lambda task=task: rig.chunks(task))  # type: ignore[misc] # mypy cannot infer a lambda
            assert state_of(rig).breaker == "closed"
            end = await rig.end(task)
            assert isinstance(end, TaskFailed)
            assert end.failure.kind is FailureKind.INTERRUPTED
            assert (state_of(rig).breaker == "open") is (number == QUICK.min_calls - 1)


async def test_while_it_is_open_no_try_is_burnt_and_one_task_is_the_probe(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    law = replace(QUICK, cooldown_s=0.8)
    async with backend_rig([server.root_url], tmp_path, replace(SEVERAL, breaker=law)) as rig:
        running = await rig.work()
        for _ in range(law.min_calls):
            await rig.end(await rig.submit(scripted(failed_terminal=True, chunks=2), stream=True))
        opened = len(server.log())
        assert "no_backend" in running.worker.gate()
        waiting = [await rig.submit(scripted(delay_s=0.2, text="well")) for _ in range(6)]
        for task in waiting:
            assert text_of(await rig.answer(task)) == "well"
        assert rig.of(AttemptFailed) == []  # the broken ones had content: nothing was tried twice
        probe, *others = sorted(server.log()[opened:], key=lambda record: record.started_s)
        assert len(others) == len(waiting) - 1
        assert probe.ended_s is not None
        assert all(record.started_s >= probe.ended_s for record in others)
        assert running.worker.gate() == ()


async def test_a_probe_that_is_cancelled_frees_its_place(server: ModelServerProcess, tmp_path: Path) -> None:
    async with backend_rig([server.root_url], tmp_path) as rig:
        await rig.work()
        for _ in range(QUICK.min_calls):
            await rig.end(await rig.submit(scripted(reset_after_chunks=1), stream=True))
        probe = await rig.submit(scripted(hang_after_chunks=0))
        await until(lambda: state_of(rig).breaker == "half_open")
        following = await rig.submit(scripted(text="next"))
        await rig.cancel(probe)
        assert text_of(await rig.answer(following)) == "next"
        assert state_of(rig).breaker == "closed"


async def test_a_long_answer_of_the_probe_lets_the_others_in(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with backend_rig([server.root_url], tmp_path) as rig:
        await rig.work()
        for _ in range(QUICK.min_calls):
            await rig.end(await rig.submit(scripted(reset_after_chunks=1), stream=True))
        probe = await rig.submit(scripted(chunks=60, chunk_interval_s=0.1))
        await until(lambda: state_of(rig).breaker == "half_open")
        following = [await rig.submit() for _ in range(3)]
        for task in following:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert not rig.of(TaskSucceeded, probe)
        assert state_of(rig).breaker == "closed"
        assert isinstance(await rig.end(probe), TaskSucceeded)


async def test_a_backend_that_flaps_costs_no_task(server: ModelServerProcess, tmp_path: Path) -> None:
    async with (
        ModelServerProcess(chunks=4) as flapping,
        backend_rig([flapping.root_url, server.root_url], tmp_path, watched=True) as rig,
    ):
        await rig.work()
        tasks = []
        for _ in range(3):
            tasks += [await rig.submit(scripted(chunks=3, chunk_interval_s=0.03)) for _ in range(10)]
            await flapping.kill()
            tasks += [await rig.submit() for _ in range(10)]
            await until(lambda: state_of(rig).health == "unavailable")
            await flapping.start()
            await until(lambda: backends_of(rig).presence(flapping.root_url) == "ready")
        for task in tasks:
            assert isinstance(await rig.end(task), TaskSucceeded)
        assert all(state.in_flight == 0 for state in backends_of(rig).states())


async def test_r2_a_storm_of_429_holds_the_backend_and_not_the_breaker(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with backend_rig([server.root_url], tmp_path, CALM) as rig:
        await rig.work()
        told = [
            await rig.submit(tries(f"t{at}", {"status": 429, "retry_after": 0.7}, {"text": "now"}))
            for at in range(12)
        ]
        for task in told:
            assert text_of(await rig.answer(task)) == "now"
        assert state_of(rig).breaker == "closed"
        ends = sorted(record.ended_s or 0 for record in server.log() if record.outcome != "ok")
        starts = [record.started_s for record in server.log()]
        # nothing began while a hold lasted: it is counted from the last refusal before
        for refused in ends:
            last = max(end for end in ends if end - refused < 0.2)
            assert not [start for start in starts if last < start < refused + 0.6]


async def test_r2_what_one_backend_asks_for_binds_no_other(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    law = BreakerLaw(min_calls=100)
    async with (
        ModelServerProcess(chunks=2) as other,
        backend_rig([other.root_url, server.root_url], tmp_path, replace(SEVERAL, breaker=law)) as rig,
    ):
        await rig.work()
        busy = tries("busy", {"status": 429, "retry_after": 50}, {"status": 429, "retry_after": 50})
        first = await rig.submit(busy)
        failed = await rig.failed_try(first)
        assert failed.next == "local"  # the other one may be asked at once
        healths = [state.health for state in backends_of(rig).states()]
        assert healths.count("unavailable") == 1
        refused = (other, server)[healths.index("unavailable")]
        following = [await rig.submit(scripted(text="here")) for _ in range(6)]
        await until(lambda: len(rig.of(AttemptFailed, first)) == 2)
        assert rig.of(AttemptFailed, first)[1].next == "parked"  # now both have asked to be left alone
        held = {task for task in following if not rig.of(TaskSucceeded, task)}
        assert rig._workers[0].worker.gate() == ("no_backend",)
        assert all(not rig.of(AttemptFailed, task) for task in held)
        assert len(refused.log()) == 1  # nobody asked it again, though it would have answered the others


async def test_leases_are_given_back_on_every_path(server: ModelServerProcess, tmp_path: Path) -> None:
    pool = replace(CALM, breaker=BreakerLaw(min_calls=100))
    async with backend_rig([server.root_url], tmp_path, pool) as rig:
        running = await rig.work()
        tasks = [await rig.submit(scripted(**script)) for script in ({}, {"status": 400}, {"empty": True})]
        cancelled = await rig.submit(scripted(delay_s=5))
        await until(lambda: state_of(rig).in_flight > 0)
        await rig.started(cancelled)
        await rig.cancel(cancelled)
        for task in tasks:
            await rig.end(task)
        await until(lambda: running.worker.held() == 0)
        assert (state_of(rig).in_flight, state_of(rig).tokens_in_flight) == (0, 0)


async def test_a_lease_whose_start_is_never_heard_of_is_given_back(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    """A redelivered task is announced before it starts; here its deadline comes first."""
    async with backend_rig([server.root_url], tmp_path, CALM) as rig:
        running = await rig.work()
        task_id = await rig.submit(deadline_s=60)
        await rig.end(task_id)
        (record,) = rig.bus.records(NAMES.lane(rig.pool.name, "interactive"))
        headers = TaskHeaders.from_text(to_text(record.headers))
        soon_ms = int(time.time() * 1000) + 700
        value = (record.value or b"").replace(task_id.encode(), b"swept-1")
        wire = [*headers.with_changes(deadline_ms=soon_ms).to_wire(), (SWEPT, b"1")]
        await rig.raw(b"swept-1", value, wire)
        rig.bus.refuse_sends(1_000_000)
        await until(lambda: state_of(rig).in_flight == 1)
        await until(lambda: state_of(rig).in_flight == 0)
        rig.bus.refuse_sends(0)
        assert isinstance(await rig.end("swept-1"), TaskFailed)
        await until(lambda: running.worker.held() == 0)
        assert len(server.log()) == 1
