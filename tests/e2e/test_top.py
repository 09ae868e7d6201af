"""`chimera top` beside a fleet that works."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.command import chimera, run_chimera
from tests.e2e.fault_fleet import ask, body
from tests.e2e.staged import Scripted, new_marker

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_live_view_counts_what_ends_while_it_looks(fleet: Scripted) -> None:
    looking = asyncio.create_task(chimera(fleet.stage, "top", "--window-s", "6"))
    while not looking.done():
        marker = new_marker()
        assert (await ask(fleet.stage.url, body(marker))).is_success
    row = next(row for row in looking.result() if row["pool"] == "scripted")
    assert (row["mode"], row["ready"], row["dead"]) == ("running", 1, 0)
    assert row["slots"] > 0
    assert row["done_per_s"] > 0
    assert row["tokens_per_s"] > 0


async def test_one_frame_is_a_table_with_every_pool(fleet: Scripted) -> None:
    code, out, error = await run_chimera(fleet.stage, "top", "--once", "--window-s", "0.5")
    assert code == 0, error
    assert "scripted" in out
    assert "real" in out
