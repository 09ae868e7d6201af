"""Which faults shut a backend out (R3): a worker process, its model server, and the gate that it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from loadtest.model_server.process import ModelServerProcess
from tests.e2e.fault_fleet import ask, body, text_of
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

CALLS = 6
GUARDED = """
  - name: guarded
    model: guarded
    base_url: {base_url}
    slots: 4
    breaker: {{min_calls: 4, failure_rate: 0.5, window_s: 60, cooldown_s: 8, cooldown_most_s: 8}}
"""


async def gate(fleet: Scripted) -> list[str]:
    """Why the worker starts nothing, in its own words."""
    url = fleet.stage.services["worker-guarded"].spec.ready_url
    async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
        return list((await client.get(url)).json()["gate"])


def asked(script: dict[str, Any], *, stream: bool = False) -> dict[str, Any]:
    return {**body(new_marker(), script, stream=stream), "model": "guarded"}


async def test_r3_only_faults_of_the_backend_open_its_breaker_those_of_streams_too(tmp_path: Path) -> None:
    async with ModelServerProcess(model="guarded", chunks=6) as server:
        pools = GUARDED.format(base_url=server.base_url)
        async with scripted_fleet(tmp_path, "local", more_pools=pools) as fleet:
            for _ in range(CALLS):
                refused = await ask(fleet.stage.url, asked({"status": 400}))
                assert refused.status_code == httpx.codes.BAD_REQUEST
            assert await gate(fleet) == []
            assert text_of(await ask(fleet.stage.url, asked({"text": "still there"}))) == "still there"
            for _ in range(2 * CALLS):
                if await gate(fleet):
                    break
                await ask(fleet.stage.url, asked({"reset_after_chunks": 2}, stream=True))

            async def shut() -> bool | None:
                return await gate(fleet) == ["no_backend"] or None

            await until(shut, "the breaker of a backend whose streams break")
            assert text_of(await ask(fleet.stage.url, asked({"text": "back"}))) == "back"  # the probe
            assert await gate(fleet) == []
