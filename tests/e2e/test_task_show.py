"""`chimera task show` on a running fleet."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.command import chimera, run_chimera
from tests.e2e.fault_fleet import ask, body, everything
from tests.e2e.staged import Scripted, new_marker

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_ended_task_is_shown_with_its_attempts_and_its_cost(fleet: Scripted) -> None:
    marker = new_marker()
    script = {"id": marker, "tries": [{"status": 500}, {"text": "two words"}]}
    assert (await ask(fleet.stage.url, body(marker, script))).is_success
    rows = await fleet.ledger(marker, 2)
    (shown,) = await chimera(fleet.stage, "task", "show", marker)
    assert shown["where"] == "ended: succeeded"
    assert [one["attempt"] for one in shown["attempts"]] == [row["attempt"] for row in rows]
    assert shown["charged_usd"] == pytest.approx(rows[1]["cost_usd"])


async def test_a_running_task_is_shown_with_its_worker(fleet: Scripted) -> None:
    marker = new_marker()
    asking = asyncio.create_task(ask(fleet.stage.url, body(marker, {"chunks": 60, "chunk_interval_s": 0.2})))
    await fleet.at_work(marker)
    evidence = await everything(fleet)
    task_id = next(task for task, request in evidence.accepted.items() if request == marker)
    (shown,) = await chimera(fleet.stage, "task", "show", task_id)
    assert shown["where"].startswith("running at scripted-")
    assert (await asking).is_success


async def test_a_task_that_nobody_knows_is_said_to_be_unknown(fleet: Scripted) -> None:
    code, _, error = await run_chimera(fleet.stage, "task", "show", "no-such-task")
    assert code == 1
    assert "no-such-task" in error
    assert "expected a task or request id" in error
