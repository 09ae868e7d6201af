"""The bookkeeper between a bus and a database: nothing lost, nothing twice, whatever dies in between."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace

from schemas.messages import CancelTask
from services.adapters.database import tables
from tests.integration.bookkeeper_fleet import (
    KNOBS,
    NAMES,
    DiesAfter,
    Fleet,
    until,
    until_row,
)
from tests.life_records import failed, started, succeeded


async def test_results_become_rows_and_offsets_are_committed(fleet: Fleet) -> None:
    fleet.start()
    for number in range(50):
        await fleet.say(
            started(f"t{number}", f"a{number}"), succeeded(f"t{number}", f"a{number}"), partition=number % 2
        )
    await until(lambda: fleet.lag() == 0)
    ledger = await fleet.rows(tables.ledger)
    assert {row.verdict for row in ledger.values()} == {"outcome"}
    assert len(ledger) == len(await fleet.rows(tables.tasks)) == 50
    assert (await fleet.rows(tables.tasks))["t7"].request_id == "r-t7"


async def test_killed_between_transaction_and_commit_the_next_one_reads_again_to_the_same_rows(
    fleet: Fleet,
) -> None:
    await fleet.say(
        started("t", "a1"),
        failed("t", "a1", "parked", due_ms=10**9),
        started("u", "b1"),
        started("u", "b2", redelivered=True),
        succeeded("v", "c1", keep_answer=True),
    )
    dying = DiesAfter(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    before = {table.name: await fleet.rows(table) for table in tables.metadata.sorted_tables}
    await fleet.kill()
    assert fleet.lag() == 5
    fleet.start()
    await until(lambda: fleet.lag() == 0)
    assert {table.name: await fleet.rows(table) for table in tables.metadata.sorted_tables} == before
    assert {name: row.state for name, row in before["ledger"].items()} == {
        "a1": "ended", "b1": "lost", "b2": "open", "c1": "ended",
    }  # fmt: skip


async def test_what_is_owed_to_the_bus_survives_a_kill_after_the_transaction(fleet: Fleet) -> None:
    await fleet.say(*(started("t", f"a{number}", redelivered=True) for number in range(5)))
    dying = DiesAfter(fleet.store())
    fleet.start(dying)
    await asyncio.wait_for(dying.done.wait(), 10)
    await fleet.kill()
    assert fleet.sent(NAMES.control) == []
    fleet.start()
    await until(lambda: bool(fleet.sent(NAMES.control)))
    await until_row(fleet, tables.tasks, "t", "closed")
    [cancel] = fleet.sent(NAMES.control)
    assert isinstance(cancel, CancelTask)
    assert (cancel.task_id, cancel.reason) == ("t", "poison")
    assert (await fleet.rows(tables.tasks))["t"].reason == "poison"


async def test_two_bookkeepers_and_a_rebalance_at_every_step_write_the_rows_of_one(fleet: Fleet) -> None:
    both = [fleet.start(knobs=replace(KNOBS, poll_records=most)) for most in (7, 5)]
    await until(lambda: all(bookkeeper.joined for bookkeeper in both))
    count = itertools.count()
    for number in range(60):
        task, partition = f"t{number}", number % 2
        await fleet.say(
            started(task, f"{task}-a"),
            failed(task, f"{task}-a", "local"),
            succeeded(task, f"{task}-b"),
            partition=partition,
        )
        if next(count) % 6 == 0:
            await fleet.bus.rebalance(NAMES.bookkeeper_group)
    await fleet.kill()
    await until(lambda: fleet.lag() == 0)
    ledger = await fleet.rows(tables.ledger)
    verdicts: Mapping[str, set[str]] = {
        kind: {row.verdict for name, row in ledger.items() if name.endswith(kind)} for kind in ("-a", "-b")
    }
    assert verdicts == {"-a": {"failed"}, "-b": {"outcome"}}
    assert len(ledger) == 120
    assert len(await fleet.rows(tables.tasks)) == 60
