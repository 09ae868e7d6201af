"""`chimera` where no fleet runs: each command ends and says in a line what is missing; none traces back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.process import free_port
from services.cli import bus_reading
from services.cli.__main__ import app, run
from services.cli.run_record import ProcessMark, RunRecord
from services.cli.running_fleet import find_fleet

FLEET = """
version: 1
pools:
  - {name: a, model: m, backend: simulated, simulated: {}}
"""
READS = ("pools", "pools pause a", "top --once", "dead list", "dead replay --dry-run", "task show x")


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state directory, and the address of a broker that is away."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    monkeypatch.setenv("CHIMERA_FLEET_FILE", str(tmp_path / "fleet.yaml"))
    monkeypatch.setenv("CHIMERA_KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(bus_reading, "ANSWER_S", 0.5)
    return tmp_path


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as status:
        run(list(arguments))
    said = capsys.readouterr()
    return status.value.code, said.out, said.err


@pytest.mark.parametrize("command", READS)
def test_a_broker_that_is_away_is_not_waited_for(
    command: str, nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = ended(capsys, *command.split(), "--state-dir", str(nobody))
    assert code == 1
    expected = (
        "the database does not answer" if command.startswith("task") else "nothing answers at 127.0.0.1"
    )
    assert expected in error


def test_a_refused_connection_is_told_before_the_longest_wait(
    nobody: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_reading, "ANSWER_S", 20.0)
    monkeypatch.setattr(bus_reading, "_KNOCK_S", 0.1)
    monkeypatch.setattr(bus_reading, "_STARTS_AGAIN_S", 0.3)
    _, _, error = ended(capsys, "pools", "--state-dir", str(nobody))
    assert "nothing answers at 127.0.0.1" in error
    assert "within 20 s" not in error


def test_to_the_doctor_a_broker_that_is_away_is_a_finding(
    nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ended(capsys, "doctor", "--state-dir", str(nobody))
    assert code == 1
    assert "the broker does not answer" in out


@pytest.mark.parametrize("command", READS)
def test_no_fleet_is_said_to_be_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHIMERA_KAFKA_BOOTSTRAP_SERVERS", raising=False)
    code, _, error = ended(capsys, *command.split(), "--state-dir", str(tmp_path))
    assert code == 1
    assert "no fleet runs from" in error


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"up": 1}'])
@pytest.mark.parametrize("command", ["pools", "down"])
def test_a_record_that_is_none_is_named(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(text)
    code, _, error = ended(capsys, command, "--state-dir", str(tmp_path))
    assert code == 1
    assert f"{tmp_path / 'run.json'}: expected the record of a run" in error


@pytest.mark.parametrize("command", ["pools", "up --detach"])
def test_a_state_directory_that_is_a_file_is_named(
    command: str, nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = ended(capsys, *command.split(), "--state-dir", str(nobody / "fleet.yaml"))
    assert code == 1
    assert "Not a directory" in error


def test_of_a_record_nothing_is_said_of_another_broker(nobody: Path) -> None:
    mine = {"CHIMERA_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "CHIMERA_BROKER": "local"}
    up = ProcessMark.of("up", os.getpid())
    RunRecord(up, (), True, "http://127.0.0.1:2", "curl", mine).write(nobody / "run.json")
    shared = {"CHIMERA_FLEET_FILE": str(nobody / "fleet.yaml")}
    same = find_fleet(nobody, shared)
    assert (same.bootstrap_servers, same.broker, same.url) == ("127.0.0.1:1", "local", "http://127.0.0.1:2")
    other = find_fleet(nobody, {**shared, "CHIMERA_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:3"})
    assert (other.bootstrap_servers, other.broker, other.url) == ("127.0.0.1:3", "external", None)
    assert (nobody / "run.json").stat().st_mode & 0o077 == 0  # a database's password may be in it


def test_a_command_imports_no_other_ones_needs() -> None:
    look = "import sys, services.cli.__main__; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "aiokafka", "httpx", "loadtest"} & set(found.stdout.split())


def test_every_command_is_there() -> None:
    for name in app:
        assert app[name].help is not None
