"""What the bookkeeper does with parked tasks: swept when they are due, by the log's own time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from schemas.headers import to_text
from schemas.messages import CancelTask, TaskClosed
from services.adapters.database import tables
from services.core.life.errands import LogBatch, TakenTask
from services.core.life.rows import Effect
from services.ports import InRecord
from tests.fakes.bus_readers import FakeGroupSource
from tests.integration.bookkeeper_fleet import (
    KNOBS,
    LANE,
    NAMES,
    STAMP_MS,
    DiesAfter,
    Fleet,
    until,
    until_row,
)
from tests.life_records import envelope_of, failed, parked, started, succeeded


async def test_a_parked_retry_goes_to_its_lane_once_untouched_when_it_is_due(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(started("t", "a1"), failed("t", "a1", "parked", due_ms=STAMP_MS + 60_000))
    await until(lambda: fleet.lag() == 0)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == [], "not due by the time of the log"
    fleet.steady_s[0] += 61  # the log is silent for a minute
    await until(lambda: len(fleet.bus.records(LANE)) == 1)
    [lane_record] = fleet.bus.records(LANE)
    envelope = envelope_of("t", '{"by":"a1"}')
    assert (lane_record.key, lane_record.value) == (b"t", envelope.value.encode())
    assert to_text(lane_record.headers) == envelope.headers | {"swept": "1"}
    await until_row(fleet, tables.parked, "t", "swept")
    fleet.steady_s[0] += 600
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert len(fleet.bus.records(LANE)) == 1
    await fleet.say(succeeded("t", "a2"))
    await until_row(fleet, tables.tasks, "t", "succeeded")
    assert await fleet.rows(tables.parked) == {}


async def test_a_sweep_that_died_before_its_mark_is_done_again_by_the_next_bookkeeper(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))

    class DiesBeforeMark(DiesAfter):
        async def apply(self, batch: LogBatch) -> tuple[Effect, ...]:
            return tuple(await self._store.apply(batch))

        async def mark_swept(self, taken: Sequence[TakenTask]) -> None:
            assert taken
            self.done.set()
            await asyncio.Event().wait()

    dying = DiesBeforeMark(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    await fleet.kill()
    assert len(fleet.bus.records(LANE)) == 1
    assert (await fleet.rows(tables.parked))["t"].state == "sweeping"
    fleet.start()
    await until_row(fleet, tables.parked, "t", "swept")
    assert len(fleet.bus.records(LANE)) == 2, "doubled, never lost"


async def test_a_lane_that_does_not_acknowledge_gets_its_task_at_the_next_sweep(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))
    fleet.start()
    fleet.bus.refuse_sends(3)
    await until_row(fleet, tables.parked, "t", "swept")
    assert len(fleet.bus.records(LANE)) == 1


async def test_a_holder_that_renews_keeps_its_task_and_one_that_falls_silent_loses_it(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS + 30_000))
    fleet.steady_s[0] += 25
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 60_000))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 10
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []
    fleet.steady_s[0] += 60
    await until(lambda: len(fleet.bus.records(LANE)) == 1)
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 300_000))
    await until(lambda: bool(fleet.sent(NAMES.control)))
    [cancel] = fleet.sent(NAMES.control)
    assert isinstance(cancel, CancelTask)
    assert cancel.attempt == "a1"


async def test_nothing_is_swept_before_all_that_was_there_has_been_read(fleet: Fleet) -> None:
    """The bookkeeper was away: the park is long due, but renewals that it has not read stand behind it."""
    slow = replace(KNOBS, poll_records=1, gather_s=0.0)
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS))
    await fleet.say(*(started(f"x{number}", f"x{number}") for number in range(150)))
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 10**6))
    fleet.start(knobs=slow)
    await until(lambda: fleet.lag() == 0, within_s=30)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []


class FallsSilent(FakeGroupSource):
    """Stops bringing records after the first poll that brought some, without a word."""

    silent = False

    async def poll(
        self, *, timeout_ms: int, max_records: int, partitions: Collection[int] | None = None
    ) -> list[InRecord]:
        if self.silent:
            await asyncio.sleep(timeout_ms / 1000)
            return []
        records = await super().poll(timeout_ms=timeout_ms, max_records=max_records, partitions=partitions)
        self.silent = bool(records)
        return records


async def test_a_reader_that_stopped_silently_sweeps_nothing(fleet: Fleet) -> None:
    await fleet.say(parked("t", "a1", due_ms=STAMP_MS + 30_000))
    fleet.start(knobs=replace(KNOBS, proof_timeout_s=0.05), reads_with=FallsSilent)
    await until(lambda: fleet.lag() == 0)
    await fleet.say(parked("t", "a1", renewal=True, due_ms=STAMP_MS + 10**6))  # never read here
    fleet.steady_s[0] += 60
    await until(lambda: sum(one.key == b"sweep" for one in fleet.bus.records(NAMES.results)) >= 3)
    assert fleet.bus.records(LANE) == []
    await fleet.kill()
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert fleet.bus.records(LANE) == []


async def test_an_overdue_parked_task_is_closed_by_the_log(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(failed("t", "a1", "parked", due_ms=2_000_000))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 1_000
    await until_row(fleet, tables.tasks, "t", "closed")
    row = (await fleet.rows(tables.tasks))["t"]
    assert (row.reason, row.request_id) == ("deadline", "r-t")
    assert fleet.bus.records(LANE) == []
    closes = [message for message in fleet.sent(NAMES.results) if isinstance(message, TaskClosed)]
    assert [(close.reason, close.by) for close in closes] == [("deadline", "bookkeeper")]


async def test_a_try_nobody_heard_of_is_lost_a_minute_past_its_deadline(fleet: Fleet) -> None:
    fleet.start()
    await fleet.say(started("t", "a1"))
    await until(lambda: fleet.lag() == 0)
    fleet.steady_s[0] += 1_030
    await asyncio.sleep(5 * KNOBS.sweep_every_s)
    assert (await fleet.rows(tables.ledger))["a1"].state == "open"
    fleet.steady_s[0] += 60
    await until_row(fleet, tables.ledger, "a1", "lost")
    await fleet.say(succeeded("t", "a1"))
    await until_row(fleet, tables.ledger, "a1", "ended")


async def test_marks_of_sweeps_are_about_no_task(fleet: Fleet) -> None:
    await fleet.say(failed("t", "a1", "parked", due_ms=STAMP_MS))
    fleet.start()
    await until_row(fleet, tables.parked, "t", "swept")
    marks: list[InRecord] = [one for one in fleet.bus.records(NAMES.results) if one.key == b"sweep"]
    assert marks
    assert await fleet.rows(tables.kept) == {}
    assert fleet.bus.records(NAMES.dead) == []
