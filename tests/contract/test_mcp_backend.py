"""Tools behind MCP, by the SDK on both sides: a server that we start, and one at a URL."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog

from infra.launcher import project_environment
from infra.process import free_port
from schemas.failures import FAILURE_FACTS, FailureKind
from services.adapters.model_backends.choice import PoolClient, client_of
from services.core.fleet import Mcp, Pool, Timeouts
from services.ports import BackendFault
from tests.backends_like.processes import McpServerProcess
from tests.contract.tool_calls import LIMITS, fault_of, result_of, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="module")
HIDDEN = "tool-secret-1234567890"
PATIENCE_S = 60.0


class Tools:
    """A client, and the server behind it, which leaves its marks in a folder."""

    def __init__(self, client: PoolClient, url: str, marks: Path) -> None:
        self.client, self.url, self._marks = client, url, marks

    async def result(self, name: str, /, **arguments: Any) -> Any:
        return await result_of(self.client, tool_call("mcp", self.url, name, arguments))

    async def fault(self, name: str, timeouts: Timeouts = LIMITS, /, **arguments: Any) -> BackendFault:
        return await fault_of(self.client, tool_call("mcp", self.url, name, arguments, timeouts=timeouts))

    async def marked(self, name: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.marks(name) < count:
                await asyncio.sleep(0.02)

    def marks(self, name: str) -> int:
        file = self._marks / name
        return file.stat().st_size if file.exists() else 0


def over_pipes(command: list[str], marks: Path, timeouts: Timeouts = LIMITS) -> PoolClient:
    env = {
        "PYTHONPATH": project_environment()["PYTHONPATH"],
        "MCP_MARKS": str(marks),
        "TOOL_KEY": "env:OUR_KEY",
    }
    pool = Pool("p", "m", backend="mcp", mcp=Mcp(tuple(command), env), timeouts=timeouts)
    return client_of(pool, {"OUR_KEY": HIDDEN}, lambda: 0.0)


SERVER = [sys.executable, "-m", "tests.backends_like.mcp_server"]


@asynccontextmanager
async def started(marks: Path) -> AsyncIterator[Tools]:
    client = over_pipes(SERVER, marks)
    yield Tools(client, "", marks)
    await client.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["stdio", "http"])
async def tools(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Tools]:
    marks = tmp_path_factory.mktemp("marks")
    if request.param == "stdio":
        async with started(marks) as piped:
            yield piped
        return
    async with McpServerProcess(marks, {"MCP_MARKS": str(marks), "TOOL_KEY": HIDDEN}) as server:
        pool = Pool("p", "m", backend="mcp", api_key_env="OUR_KEY", timeouts=LIMITS)
        client = client_of(pool, {"OUR_KEY": HIDDEN}, lambda: 0.0)
        yield Tools(client, server.tool_url, marks)
        await client.aclose()


async def test_results_are_structured_or_text_or_blocks(tools: Tools) -> None:
    assert await tools.result("add", a=1, b=2) == {"result": 3}
    assert await tools.result("person", name="Ü") == {"name": "Ü", "tags": ["ü", 1, None]}
    assert await tools.result("say", text="plain [words]") == "plain [words]"
    assert await tools.result("say", text='{"a": [1]}') == {"a": [1]}
    (block,) = await tools.result("picture")
    assert (block["type"], block["mimeType"]) == ("image", "image/png")


async def test_a_tool_that_fails_has_answered(tools: Tools) -> None:
    fault = await tools.fault("fail", words="no such city " + "x" * 5_000)
    assert fault.kind is FailureKind.TOOL_ERROR
    assert "no such city" in fault.message
    assert len(fault.message) <= 600
    facts = FAILURE_FACTS[fault.kind]
    assert not facts.retryable
    assert not facts.counts_against_backend
    assert facts.billed
    wrong = await tools.fault("add", a="x", b=2)
    assert wrong.kind is FailureKind.TOOL_ERROR
    assert "valid integer" in wrong.message


async def test_an_unknown_tool_is_refused_with_the_names_of_those_that_are(tools: Tools) -> None:
    fault = await tools.fault("subtract", a=1)
    assert fault.kind is FailureKind.BAD_REQUEST
    assert (fault.code, fault.param) == ("unknown_tool", "name")
    assert "expected one of add, crash" in fault.message


async def test_s5_a_cancelled_call_is_cancelled_at_the_server_and_no_other_is(tools: Tools) -> None:
    calls = [
        tool_call("mcp", tools.url, "wait", {"name": name, "seconds": s})
        for name, s in (("left", 60), ("stays", 1))
    ]
    left, stays = [asyncio.create_task(result_of(tools.client, call)) for call in calls]
    await tools.marked("left.begun")
    await tools.marked("stays.begun")
    left.cancel()
    await asyncio.wait({left})
    assert left.cancelled()
    await tools.marked("left.cancelled")
    assert await stays == {"result": "stays"}
    assert tools.marks("stays.cancelled") == 0


async def test_s4_time_ends_a_call_at_the_server_too(tools: Tools) -> None:
    await tools.result("say", text="it is up")
    short = Timeouts(connect_s=0.2, first_token_s=0.2, idle_s=0.2, total_s=0.3)
    fault = await tools.fault("wait", short, name="late", seconds=60)
    assert fault.kind is FailureKind.TOTAL_TIMEOUT
    await tools.marked("late.cancelled")


async def test_r8_a_tools_words_are_shown_without_the_key(tools: Tools) -> None:
    fault = await tools.fault("leak")
    assert "refused with key ***" in fault.message
    assert HIDDEN not in f"{fault.message} {fault} {fault.__dict__}"


async def test_a_server_that_crashes_breaks_its_calls_and_comes_back(tmp_path: Path) -> None:
    async with started(tmp_path) as piped:
        waiting = asyncio.create_task(piped.fault("wait", name="under", seconds=60))
        await piped.marked("under.begun")
        assert (await piped.fault("crash")).kind is FailureKind.RESET
        assert (await waiting).kind is FailureKind.RESET
        assert await piped.result("add", a=2, b=2) == {"result": 4}
        assert piped.marks("started") == 2


async def test_a_server_that_dies_while_nobody_calls_is_started_again(tmp_path: Path) -> None:
    async with started(tmp_path) as piped:
        assert await piped.result("leave") == {"result": "soon"}
        await piped.marked("started", 2)
        assert await piped.result("add", a=1, b=1) == {"result": 2}


async def test_a_server_at_a_url_that_comes_back_is_called_again(tmp_path: Path) -> None:
    async with McpServerProcess(tmp_path, {"MCP_MARKS": str(tmp_path)}) as server:
        client = client_of(Pool("p", "m", backend="mcp", timeouts=LIMITS), {}, lambda: 0.0)
        tools = Tools(client, server.tool_url, tmp_path)
        waiting = asyncio.create_task(tools.fault("wait", name="under", seconds=60))
        await tools.marked("under.begun")
        await server.kill()
        assert (await waiting).kind in (FailureKind.RESET, FailureKind.UNREACHABLE)
        await server.start()
        assert await tools.result("add", a=2, b=2) == {"result": 4}
        await client.aclose()


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        [sys.executable, "-c", "print('no mcp', flush=True); import sys; sys.stdin.read()"],
        [sys.executable, "-c", "raise SystemExit(3)"],
        ["/no/such/program"],
    ],
    ids=["mute", "prints", "ends", "missing"],
)
async def test_a_server_that_never_initialises_is_not_there(tmp_path: Path, command: list[str]) -> None:
    short = Timeouts(connect_s=0.5, first_token_s=1, idle_s=1, total_s=30)
    client = over_pipes(command, tmp_path, short)
    fault = await fault_of(client, tool_call("mcp", "", "add", timeouts=short))
    assert fault.kind is FailureKind.UNREACHABLE
    assert not await client.answers("")
    await client.aclose()


async def test_nobody_at_the_url_is_not_there_either() -> None:
    short = Timeouts(connect_s=0.5, first_token_s=1, idle_s=1, total_s=30)
    client = client_of(Pool("p", "m", backend="mcp", timeouts=short), {}, lambda: 0.0)
    call = tool_call("mcp", f"http://127.0.0.1:{free_port()}/mcp", "add", timeouts=short)
    assert (await fault_of(client, call)).kind is FailureKind.UNREACHABLE
    await client.aclose()


@pytest.mark.parametrize("tools", ["stdio"], indirect=True)
async def test_r8_a_server_has_its_own_variables_and_none_of_ours_and_its_stderr_is_logged(
    tools: Tools,
) -> None:
    with structlog.testing.capture_logs() as logs:
        names = (await tools.result("environment")).split("\n")
        async with asyncio.timeout(PATIENCE_S):
            while not any("my key is" in str(line.get("line")) for line in logs):
                await asyncio.sleep(0.02)
    assert "TOOL_KEY" in names
    ours = set(os.environ) - {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "PYTHONPATH", "LC_CTYPE"}
    assert ours - {"LANG"}
    assert ours & set(names) == set()
