"""`chimera dead` on a running fleet: what died is shown by its cause, and done once more."""

from __future__ import annotations

from typing import Any

import pytest

from services.core.dead_letters import replay_id
from tests.e2e.command import chimera
from tests.e2e.fault_fleet import ask, body, everything
from tests.e2e.staged import Scripted, new_marker, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_ran_out_of_tries_is_grouped_shown_and_done_once_more(fleet: Scripted) -> None:
    markers = [new_marker() for _ in range(2)]
    for marker in markers:
        # Three tries fail; the fourth, which is the replay's first, is answered.
        script = {"id": marker, "tries": [{"status": 500}] * 3 + [{"text": "at last"}]}
        assert (await ask(fleet.stage.url, body(marker, script))).status_code >= 500
    evidence = await everything(fleet)
    tasks = {request: task for task, request in evidence.accepted.items()}
    old = [tasks[marker] for marker in markers]

    groups = await chimera(fleet.stage, "dead", "list", "--cause", "out of tries")
    counts = {group["cause"]: group["count"] for group in groups}
    assert counts["out of tries: server_error"] >= 2
    (letter,) = [one for one in await chimera(fleet.stage, "dead", "list", "--each") if one["task"] == old[0]]
    assert letter["tries"] == 3
    shown = await chimera(fleet.stage, "dead", "show", old[0])
    assert markers[0] in shown["value"]

    dry = await chimera(fleet.stage, "dead", "replay", "--task-id", old[0], "--dry-run")
    assert (dry["sent"], len(dry["replays"])) == (0, 1)
    nothing = await chimera(fleet.stage, "dead", "replay", "--task-id", old[0], "--budget-usd", "0")
    assert (nothing["sent"], nothing["left_out"]) == (0, 1)
    sent = await chimera(fleet.stage, "dead", "replay", "--task-id", old[0])
    assert sent["replays"] == [{"replay_of": old[0], "task_id": replay_id(old[0], 1)}]

    async def ended() -> list[tuple[str, Any]] | None:
        return (await everything(fleet)).terminals.get(replay_id(old[0], 1))

    terminals = await until(ended, "the replay's outcome")
    assert terminals[0][0] == "TaskSucceeded"
    answer = terminals[0][1]["answer"]["inline"]
    assert answer["choices"][0]["message"]["content"] == "at last"
    await refused_once_booked(fleet, old[0])
    assert old[1] not in {task for task in (await everything(fleet)).accepted if task == replay_id(old[1], 1)}


async def refused_once_booked(fleet: Scripted, old: str) -> None:
    """Until then the same n is the same task; another n is another one."""

    async def refused() -> dict[str, Any] | None:
        again = await chimera(fleet.stage, "dead", "replay", "--task-id", old)
        return again if again["refused"] else None

    again = await until(refused, "the replay in the rows")
    assert (again["sent"], again["replays"]) == (0, [])
    assert "has ended (succeeded)" in again["refused"][0]["why"]
    more = await chimera(fleet.stage, "dead", "replay", "--task-id", old, "--n", "2", "--dry-run")
    assert [one["task_id"] for one in more["replays"]] == [replay_id(old, 2)]
