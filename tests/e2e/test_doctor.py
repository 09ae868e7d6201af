"""`chimera doctor` beside a running fleet: it finds what was done to it, and names the cure."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.e2e.command import chimera, run_chimera
from tests.e2e.fault_fleet import ask, body
from tests.e2e.staged import Scripted, new_marker, scripted_fleet

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def findings(fleet: Scripted, window_s: float) -> list[dict[str, Any]]:
    code, out, error = await run_chimera(
        fleet.stage, "doctor", "--json", "--probes", "1", "--window-s", str(window_s)
    )
    assert code in (0, 1), error
    found: list[dict[str, Any]] = orjson.loads(out)["findings"]
    return found


async def chats(fleet: Scripted, count: int, script: dict[str, Any], **more: Any) -> None:
    asking = []
    for _ in range(count):
        marker = new_marker()
        named = {"id": marker, **script} if "tries" in script else script
        asking.append(ask(fleet.stage.url, {**body(marker, named), **more}))
    for answer in await asyncio.gather(*asking):
        assert answer.is_success, answer.text


async def test_the_doctor_tells_troubles_apart(kafka_possible: None, tmp_path_factory: Any) -> None:
    async with scripted_fleet(tmp_path_factory.mktemp("doctor"), "kafka") as fleet:
        await chats(fleet, 8, {"text": "fine"})
        assert await findings(fleet, 600) == []

        await chats(fleet, 8, {"text": "cut", "finish_reason": "length"})
        (first, *_) = await findings(fleet, 600)
        assert first["symptom"] == "poor"
        assert "cut off" in first["cause"]

        await chats(fleet, 12, {"tries": [{"status": 429}, {"status": 429}, {"text": "at last"}]})
        found = await findings(fleet, 600)
        assert any(one["symptom"] == "fails_under_load" and "429" in one["cause"] for one in found)

        await chimera(fleet.stage, "pools", "pause", "scripted", "--reason", "a test")
        found = await findings(fleet, 600)
        paused = [one for one in found if "order says paused" in one["cause"]]
        assert paused
        assert paused[0]["cure"] == "chimera pools resume scripted"
