"""The two commands of the README do what it says: the shipped fleet, as a newcomer starts and stops it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
import yaml

from infra.process import free_port
from services.cli.first_question import QUESTION
from services.cli.run_record import RunRecord
from tests.architecture.sources import ROOT
from tests.e2e.staged import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
UP_S = 180.0
SECOND_UP_S = 150.0  # ten times what is promised
OTHER_QUESTION = "Why is the sky blue?"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fleet runs: its port and its state directory."""

    port: int
    state: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def record(self) -> RunRecord:
        record = RunRecord.read(self.state / "run.json")
        assert record is not None
        return record


async def make(target: str, place: Place, timeout_s: float = UP_S) -> subprocess.CompletedProcess[str]:
    """`make up` or `make down`. The environment is taken as it is (-o): these tests run in it."""
    command = ["make", "-o", ".venv/ready", target, f"PORT={place.port}", f"STATE={place.state}"]
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the make that may have started these tests
    environment = {k: v for k, v in os.environ.items() if k not in outer and not k.startswith("CHIMERA_")}
    return await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


async def shell(command: str) -> dict[str, Any]:
    """What a pasted command prints, as JSON."""
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def printed_curl(output: str) -> str:
    found = re.search(r"^Try it:\n(curl .*)$", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


def content(answer: Mapping[str, Any]) -> str:
    text = answer["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


@dataclass(frozen=True, slots=True)
class UpFleet:
    place: Place
    output: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UpFleet]:
    """The shipped fleet, started once; a test that stops it starts it again."""
    place = Place(free_port(), tmp_path_factory.mktemp("up") / "state")
    started = await make("up", place)
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield UpFleet(place, started.stdout)
    finally:
        await make("down", place)


async def test_the_printed_curl_answers_as_it_is_and_two_questions_get_two_answers(up: UpFleet) -> None:
    curl = printed_curl(up.output)
    assert curl.count(QUESTION) == 1
    first = await shell(curl)
    second = await shell(curl.replace(QUESTION, OTHER_QUESTION))
    assert content(first).strip()
    assert content(second).strip()
    assert content(first) != content(second)


@pytest.mark.parametrize("pool", ["chat-fast", "chat-strong"])
async def test_usage_is_what_the_model_server_reports(up: UpFleet, pool: str) -> None:
    origin = _model_server(up.place, pool)
    body = {
        "messages": [{"role": "user", "content": f"Count from one to five, {pool}."}],
        "temperature": 0,
        "seed": 3,
        "max_tokens": 12,
    }
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        before = await _counters(client, origin)
        through = await client.post(f"{up.place.url}/v1/chat/completions", json=body | {"model": pool})
        after = await _counters(client, origin)
        direct = (await client.post(f"{origin}/v1/chat/completions", json=body)).json()
    assert through.headers["x-chimera-pool"] == pool
    answer = through.json()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    assert content(answer) == content(direct)
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[field] == direct["usage"][field], field
    assert after["tokens_predicted_total"] - before["tokens_predicted_total"] == usage["completion_tokens"]
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == usage["prompt_tokens"] - cached


def _model_server(place: Place, pool: str) -> str:
    effective = yaml.safe_load((place.state / "fleet.effective.yaml").read_text())
    url = next(entry["base_url"] for entry in effective["pools"] if entry["name"] == pool)
    assert isinstance(url, str)
    return url.removesuffix("/v1")


async def _counters(client: httpx.AsyncClient, origin: str) -> dict[str, float]:
    """The model server's own counts of tokens."""
    text = (await client.get(f"{origin}/metrics")).text
    found = re.findall(r"^llamacpp:(tokens_predicted_total|prompt_tokens_total) (\S+)$", text, re.MULTILINE)
    counts = {name: float(value) for name, value in found}
    assert set(counts) == {"tokens_predicted_total", "prompt_tokens_total"}
    return counts


async def test_a_taken_port_is_named_and_another_suggested(up: UpFleet, tmp_path: Path) -> None:
    refused = await make("up", Place(up.place.port, tmp_path / "other"))
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert str(up.place.port) in said
    assert "--port" in said
    assert "Traceback" not in said


async def test_a_state_directory_in_use_is_refused_and_its_fleet_goes_on(up: UpFleet) -> None:
    record, log = up.place.record, (up.place.state / "logs" / "up.log").read_text()
    refused = await make("up", Place(free_port(), up.place.state))
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert up.place.url in said
    assert "Traceback" not in said
    assert up.place.record == record
    assert (up.place.state / "logs" / "up.log").read_text().startswith(log)
    assert content(await shell(printed_curl(up.output))).strip()


async def test_down_leaves_nothing_and_a_second_up_answers(up: UpFleet) -> None:
    processes = _processes(up.place.record)
    ports = _listening(processes)
    assert up.place.port in ports
    assert len(processes) >= 7  # up, broker, two models, orchestrator, two workers, ingress

    stopped = await make("down", up.place)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "killed" not in stopped.stdout
    assert [process for process in processes if _runs(process)] == []
    assert [port for port in ports if _accepts(port)] == []
    assert not (up.place.state / "run.json").exists()

    again = await make("up", up.place, SECOND_UP_S)
    assert again.returncode == 0, again.stdout + again.stderr
    assert content(await shell(printed_curl(again.stdout))).strip()


def _processes(record: RunRecord) -> list[psutil.Process]:
    """Everything that the record names and every child of it."""
    named = {mark.pid: mark.process() for mark in (record.up, *record.processes)}
    assert all(named.values())
    found = {process.pid: process for process in named.values() if process is not None}
    for process in list(found.values()):
        found |= {child.pid: child for child in process.children(recursive=True)}
    return list(found.values())


def _runs(process: psutil.Process) -> bool:
    """False too for one that has ended and waits for somebody to read its exit code."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _listening(processes: list[psutil.Process]) -> set[int]:
    return {
        connection.laddr.port
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_killed_up_takes_everything_that_it_started_with_it(tmp_path: Path) -> None:
    place = Place(free_port(), tmp_path / "state")
    arguments = ["--fleet", "examples/fleet.simulated.yaml", "--port", str(place.port)]
    command = [sys.executable, "-m", "services.cli", "up", *arguments, "--state-dir", str(place.state)]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)  # noqa: ASYNC220 - a fork
    try:

        async def answered() -> RunRecord | None:
            assert process.poll() is None, (tmp_path / "output").read_text()
            record = RunRecord.read(place.state / "run.json")
            return record if record is not None and record.ready else None

        started = _processes(await until(answered, "the first answer", UP_S))
    finally:
        process.kill()
        process.wait()

    async def all_gone() -> bool | None:
        return None if any(map(_runs, started)) else True

    await until(all_gone, "the end of what a killed up had started")
    assert (await make("down", place)).returncode == 0
    assert not (place.state / "run.json").exists()
