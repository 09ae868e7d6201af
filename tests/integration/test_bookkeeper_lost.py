"""What the bookkeeper does with the open tries of workers that are dead in `fleet`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from services.adapters.database import tables
from services.core.fleet_table import BURY_AFTER_S
from services.ports import BusError, InRecord
from tests.integration.bookkeeper_fleet import DEAD_AFTER_S, KNOBS, NAMES, Fleet, until, until_row
from tests.life_records import started, succeeded


@asynccontextmanager
async def beating(fleet: Fleet, worker: str, *, quiet_s: float = 0.0) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            with contextlib.suppress(BusError):
                await fleet.beat(worker, quiet_s=quiet_s)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def states(fleet: Fleet) -> dict[str, str]:
    return {attempt: row.state for attempt, row in (await fleet.rows(tables.ledger)).items()}


async def test_a_silent_workers_open_try_is_lost_and_ended_when_it_comes_back(
    fleet: Fleet,
) -> None:
    fleet.start()
    async with beating(fleet, "alive"):
        async with beating(fleet, "stopped"):
            await fleet.say(
                started("t", "a1", worker="stopped"),
                started("u", "b1", worker="alive"),
                started("v", "c1", worker="stopped"),
                succeeded("v", "c1"),
            )
            await until_row(fleet, tables.ledger, "c1", "ended")
            await asyncio.sleep(1.5 * DEAD_AFTER_S)
            assert await states(fleet) == {"a1": "open", "b1": "open", "c1": "ended"}, "all beat"
        await until_row(fleet, tables.ledger, "a1", "lost")
        assert await states(fleet) == {"a1": "lost", "b1": "open", "c1": "ended"}
        row = (await fleet.rows(tables.ledger))["a1"]
        assert row.verdict == "lost"
        await fleet.say(succeeded("t", "a1"))
        await until_row(fleet, tables.ledger, "a1", "ended")
        assert (await fleet.rows(tables.ledger))["a1"].verdict == "outcome"


async def test_a_worker_that_beats_and_gets_nowhere_is_dead(fleet: Fleet) -> None:
    fleet.start()
    async with beating(fleet, "slow", quiet_s=19.0), beating(fleet, "stuck", quiet_s=20.0):
        await fleet.say(started("t", "a1", worker="stuck"), started("u", "b1", worker="slow"))
        await until_row(fleet, tables.ledger, "a1", "lost")
        await asyncio.sleep(1.5 * DEAD_AFTER_S)
        assert (await states(fleet))["b1"] == "open"


async def test_a_worker_that_nobody_heard_of_gets_a_grace(fleet: Fleet) -> None:
    fleet.start(knobs=replace(KNOBS, unheard_grace_s=1.5))
    await fleet.say(started("t", "a1", worker="new"), started("u", "b1", worker="gone"))
    await until_row(fleet, tables.ledger, "b1", "open")
    await asyncio.sleep(0.3)
    async with beating(fleet, "new"):
        await until_row(fleet, tables.ledger, "b1", "lost")
        assert (await states(fleet))["a1"] == "open", "it was heard of in time"


async def test_a_broker_that_was_away_made_nobody_dead(fleet: Fleet) -> None:
    bookkeeper = fleet.start()
    async with beating(fleet, "worker"):
        await fleet.say(started("t", "a1", worker="worker"))
        await until_row(fleet, tables.ledger, "a1", "open")
        fleet.bus.freeze(for_s=1.5)
        await asyncio.sleep(2 * DEAD_AFTER_S)
        fleet.bus.thaw()
        await asyncio.sleep(1.5 * DEAD_AFTER_S)
        assert bookkeeper.losses.lost == 0
        assert await states(fleet) == {"a1": "open"}


async def test_tries_are_lost_only_where_their_partition_is_owned(fleet: Fleet) -> None:
    """Two bookkeepers own a partition each; both see the worker dead, each loses its own, once."""
    first, second = fleet.start(), fleet.start()
    await until(lambda: first.joined and second.joined)
    async with beating(fleet, "dies"):
        await fleet.say(started("t", "a1", worker="dies"), partition=0)
        await fleet.say(started("u", "b1", worker="dies"), partition=1)
        await until_row(fleet, tables.ledger, "a1", "open")
        await until_row(fleet, tables.ledger, "b1", "open")
    await until_row(fleet, tables.ledger, "a1", "lost")
    await until_row(fleet, tables.ledger, "b1", "lost")
    assert (first.losses.lost, second.losses.lost) == (1, 1)


async def test_who_is_dead_for_long_is_taken_out_of_the_topic(fleet: Fleet) -> None:
    """The log itself says how old the last beats are when a bookkeeper begins."""
    await fleet.beat("long-dead")
    [old] = fleet.bus.records(NAMES.fleet)
    fleet.bus._timestamps = iter(range(old.timestamp_ms + int(BURY_AFTER_S * 1000) + 1, 1 << 40))  # type: ignore[assignment] # a count
    await fleet.beat("newer")
    fleet.start()

    def tombs() -> list[InRecord]:
        return [record for record in fleet.bus.records(NAMES.fleet) if record.value is None]

    await until(lambda: bool(tombs()))
    await asyncio.sleep(3 * KNOBS.bury_every_s)
    assert {record.key for record in tombs()} == {b"worker/long-dead"}
    assert len(tombs()) == 1
