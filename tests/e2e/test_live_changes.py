"""A fleet file that is edited while its fleet runs: pools come, go and are replaced, and calls go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
import yaml

from infra.process import free_port
from tests.e2e.staged import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 180.0


def pool(name: str, words: int = 4, **more: Any) -> dict[str, Any]:
    simulated = {"mean_s": 0.05, "output_tokens": words}
    return {"name": name, "model": f"model-{name}", "backend": "simulated", "simulated": simulated, **more}


@dataclass
class Live:
    """A fleet by `chimera up`, whose file is edited by `edit`."""

    process: asyncio.subprocess.Process | None
    file: Path
    log: Path
    url: str

    def edit(self, *pools: dict[str, Any]) -> None:
        partial = self.file.with_suffix(".new")
        partial.write_text(yaml.safe_dump({"version": 1, "partitions": 2, "pools": list(pools)}))
        os.replace(partial, self.file)

    async def said(self, text: str, count: int = 1) -> None:
        async def look() -> bool | None:
            return True if self.log.read_text().count(text) >= count else None

        await until(look, f"{count} times {text!r} in\n{self.log.read_text()}", PATIENCE_S)

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), PATIENCE_S)

    async def ask(self, model: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            return await client.post(f"{self.url}/v1/chat/completions", json=body)

    async def models(self) -> set[str]:
        async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
            listed = (await client.get(f"{self.url}/v1/models")).json()["data"]
        return {one["id"] for one in listed}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    port, log = free_port(), folder / "up.log"
    command = ["-m", "services.cli", "up", "--fleet", str(folder / "fleet.yaml"), "--port", str(port)]
    with log.open("wb") as out:
        made = Live(None, folder / "fleet.yaml", log, f"http://127.0.0.1:{port}")
        made.edit(pool("a"), pool("b"))
        made.process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--state-dir", str(folder / "state")),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        await made.said("The fleet answers at")
        yield made
    finally:
        await made.stop()


def words(answer: httpx.Response) -> int:
    assert answer.is_success, answer.text
    return len(answer.json()["choices"][0]["message"]["content"].split())


async def test_pools_come_go_and_are_replaced_without_a_restart(live: Live) -> None:
    live.edit(pool("a"), pool("b"), pool("c", words=7))
    await live.said("fleet file taken over", 1)
    assert "c" in await live.models()
    assert words(await live.ask("c")) == 7

    live.edit(pool("a", words=9), pool("b"), pool("c", words=7))  # replaced: the new worker first
    await live.said("fleet file taken over", 2)
    assert words(await live.ask("a")) == 9

    live.edit(pool("a", words=9), pool("c", words=7))
    await live.said("fleet file taken over", 3)
    gone = await live.ask("b")
    assert gone.status_code == httpx.codes.NOT_FOUND
    assert gone.json()["error"]["code"] == "model_not_found"
    assert words(await live.ask("a")) == 9
    assert live.process is not None
    assert live.process.returncode is None


async def test_a_wrong_file_changes_nothing_and_says_where_it_is_wrong(live: Live) -> None:
    before = await live.models()
    live.edit(pool("a", slots=0))
    await live.said("the changed fleet file is wrong")
    assert "slots" in live.log.read_text()
    assert await live.models() == before
    assert words(await live.ask("c")) == 7


async def test_a_pool_that_does_not_start_is_taken_back(live: Live) -> None:
    before = await live.models()
    broken = {"name": "d", "model": "m", "launch": {"model": "/no/such/model.gguf"}}
    live.edit(pool("a", words=9), pool("c", words=7), broken)
    await live.said("the change is taken back")
    assert await live.models() == before
    assert words(await live.ask("c")) == 7


async def test_a_stop_in_the_middle_of_a_change_ends_it_and_what_it_began(live: Live) -> None:
    assert live.process is not None
    log = live.file.parent / "state" / "logs"
    never = {"name": "e", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    live.edit(pool("a", words=9), pool("c", words=7), never)

    async def began() -> bool | None:
        return True if list(log.glob("worker-e.*.log")) else None

    await until(began, "the worker of the new pool", PATIENCE_S)
    before = psutil.Process(live.process.pid).children(recursive=True)
    await live.stop()
    assert not [child for child in before if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    said = live.log.read_text().rpartition("fleet file changed: add e")[2]
    assert "stopping" in said
    assert "taken" not in said
