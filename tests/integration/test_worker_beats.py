"""What a worker says of itself on `fleet`, and what it does when its pool is paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from loadtest.model_server.process import ModelServerProcess
from schemas.codec import decode_fleet, encode, message_headers
from schemas.failures import FailureKind
from schemas.fleet_messages import PoolMode, PoolOrder, WorkerBeat
from schemas.headers import to_text
from schemas.messages import TaskFailed, TaskSucceeded
from schemas.topics import PRIORITIES
from services.ports import ModelCall, OutRecord, StartAt
from tests.fakes.bus_readers import FakeLogReader
from tests.integration.worker_rig import NAMES, POOL, Running, WorkerRig, openai_rig, scripted, until


def beats(rig: WorkerRig, worker: str = "worker-1") -> list[WorkerBeat]:
    found = [
        decode_fleet(to_text(record.headers), record.value)
        for record in rig.bus.records(NAMES.fleet)
        if record.key == f"worker/{worker}".encode() and record.value is not None
    ]
    return [beat for beat in found if isinstance(beat, WorkerBeat)]


def left(rig: WorkerRig, worker: str = "worker-1") -> bool:
    """Whether its last record takes it out."""
    own = [r for r in rig.bus.records(NAMES.fleet) if r.key == f"worker/{worker}".encode()]
    return bool(own) and own[-1].value is None


async def order(rig: WorkerRig, mode: PoolMode, pool: str = POOL.name) -> None:
    message = PoolOrder(sent_ms=1, pool=pool, mode=mode)
    await rig.publisher.start()
    record = OutRecord(NAMES.fleet, message.key.encode(), encode(message), message_headers(message), 0)
    await rig.publisher.send(record, timeout_s=5)


async def gate_is(running: Running, *reasons: str) -> None:
    await until(lambda: running.worker.gate() == reasons)


class Breaking:
    """A client with a fault of our own: it raises in the middle of an answer what no backend says."""

    async def events(self, call: ModelCall) -> AsyncIterator[list[dict[str, Any]]]:
        yield [{"choices": [{"index": 0, "delta": {"role": "assistant"}}]}]
        raise RuntimeError(call.path)

    async def aclose(self) -> None:
        pass


async def test_a_try_that_breaks_inside_runs_no_longer(server: ModelServerProcess, tmp_path: Path) -> None:
    async with openai_rig(server.root_url, tmp_path, beat_s=0.1) as rig:
        await rig.work(client=Breaking())
        with capture_logs():  # to draw the traceback with its locals takes seconds
            ended = await rig.end(await rig.submit())
        assert isinstance(ended, TaskFailed)
        assert ended.failure.kind is FailureKind.INTERNAL
        seen = len(beats(rig))
        await until(lambda: len(beats(rig)) > seen + 1)
        assert (beats(rig)[-1].running, beats(rig)[-1].in_flight, beats(rig)[-1].quiet_s) == ((), 0, 0)


async def test_a_worker_says_what_it_is_does_and_owns(server: ModelServerProcess, tmp_path: Path) -> None:
    async with openai_rig(server.root_url, tmp_path, beat_s=0.1) as rig:
        running = await rig.work()
        await until(lambda: beats(rig) and beats(rig)[-1].state == "ready")
        assert beats(rig)[0].state == "loading"
        await until(lambda: all(len(owned) == 2 for owned in beats(rig)[-1].owns.values()))
        beat = beats(rig)[-1]
        assert (beat.pool, beat.slots, beat.in_flight, beat.queued) == (POOL.name, 4, 0, 0)
        assert beat.owns == {NAMES.lane(POOL.name, priority): (0, 1) for priority in PRIORITIES}
        tasks = [await rig.submit(scripted(chunks=40, chunk_interval_s=0.1), stream=True) for _ in range(6)]
        await until(lambda: beats(rig)[-1].in_flight == 4 and beats(rig)[-1].queued == 2)
        beat = beats(rig)[-1]
        assert set(beat.running) <= set(tasks)
        assert len(beat.running) == 4
        assert beat.queue_seconds == 2 * beat.service_seconds == 2 * POOL.prior_seconds
        running.worker.stop()
        await until(lambda: beats(rig)[-1].state == "draining")
        assert not left(rig)
        await running.stop()
        assert left(rig), "nobody waits for a worker that said good-bye"


async def test_quiet_is_the_silence_of_what_runs(server: ModelServerProcess, tmp_path: Path) -> None:
    async with openai_rig(server.root_url, tmp_path, beat_s=0.1) as rig:
        await rig.work()
        task = await rig.submit(scripted(chunks=3, ttft_s=2.0, chunk_interval_s=0.05), stream=True)
        await until(lambda: beats(rig)[-1].quiet_s > 1.0)
        await rig.end(task)
        await until(lambda: beats(rig)[-1].in_flight == 0)
        assert beats(rig)[-1].quiet_s == 0
        flows = await rig.submit(scripted(chunks=30, chunk_interval_s=0.1), stream=True)
        await rig.end(flows)
        said = [beat.quiet_s for beat in beats(rig) if beat.running == (flows,)]
        assert len(said) > 5
        assert max(said) < 1.0


async def test_a_paused_pool_starts_nothing_ends_what_runs_and_goes_on(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with openai_rig(server.root_url, tmp_path) as rig:
        running = await rig.work()
        runs = await rig.submit(scripted(chunks=10, chunk_interval_s=0.1))
        await rig.started(runs)
        await order(rig, "paused", pool="of-others")
        await order(rig, "paused")
        await gate_is(running, "paused")
        waits = await rig.submit()
        overdue = await rig.submit(deadline_s=0.5)
        assert isinstance(await rig.end(runs), TaskSucceeded)
        assert (await rig.end(overdue)).run is None, "what cannot wait is told so"
        await asyncio.sleep(0.5)
        assert rig.results(waits) == []
        assert all(running.worker.ready().values()), "a pause is no fault of its worker"
        await order(rig, "draining")
        await asyncio.sleep(0.3)
        assert running.worker.gate() == ("paused",)
        await order(rig, "running")
        await gate_is(running)
        assert isinstance(await rig.end(waits), TaskSucceeded)


class Slow(FakeLogReader):
    async def start(self, *, at: StartAt) -> None:
        await asyncio.sleep(1.0)
        await super().start(at=at)


async def test_a_worker_that_begins_while_its_pool_is_paused_starts_nothing(rig: WorkerRig) -> None:
    await order(rig, "paused")
    task = await rig.submit()
    rig.reads_fleet_with = Slow
    running = await rig.work()
    await gate_is(running, "paused")
    await asyncio.sleep(0.5)
    assert rig.results(task) == []
    await order(rig, "running")
    assert isinstance(await rig.end(task), TaskSucceeded)


async def test_a_broker_that_takes_no_beats_holds_nothing_up(
    server: ModelServerProcess, tmp_path: Path
) -> None:
    async with openai_rig(server.root_url, tmp_path, beat_s=0.1, beat_timeout_s=0.1) as rig:
        running = await rig.work()
        task = await rig.submit(scripted(chunks=10, chunk_interval_s=0.1))
        await rig.started(task)
        rig.bus.freeze()
        await until(lambda: running.worker.beats_unsent() >= 3)
        rig.bus.thaw()
        assert isinstance(await rig.end(task), TaskSucceeded)
        seen = len(beats(rig))
        await until(lambda: len(beats(rig)) > seen + 3)
