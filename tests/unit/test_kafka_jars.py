"""The jars are fetched once, and a fetch that died half-way does not count."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.kafka import jars

# Stands in for Maven: says that it ran, takes its time, and leaves a jar.
_MVN = """#!/bin/sh
echo run >> "$FETCHES"
for argument in "$@"; do case "$argument" in -DoutputDirectory=*) out="${argument#*=}";; esac; done
sleep 0.3
mkdir -p "$out" && touch "$out/kafka-server-4.4.0.jar"
exit ${MVN_EXIT:-0}
"""

_ENSURE = "from infra.kafka.jars import ensure_jars; print(ensure_jars())"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home without jars and a Maven of our own, which counts its runs in FETCHES."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mvn").write_text(_MVN)
    (programs / "mvn").chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key != "CHIMERA_KAFKA_LIBS"}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "HOME": str(tmp_path), "PATH": path, "FETCHES": str(tmp_path / "fetches")}


def _start(environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _ENSURE],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _fetches(environment: dict[str, str]) -> int:
    return len(Path(environment["FETCHES"]).read_text().splitlines())


def test_runs_that_start_together_fetch_once(environment: dict[str, str]) -> None:
    runs = [_start(environment) for _ in range(3)]
    outputs = {run.communicate(timeout=60)[0] for run in runs}
    assert outputs == {f"{environment['HOME']}/.cache/chimera/kafka/{jars.kafka_version()}\n"}
    assert _fetches(environment) == 1


def test_a_failed_fetch_is_an_error_and_is_tried_again(environment: dict[str, str]) -> None:
    """Half the jars may be there by then: they must not pass for all of them."""
    failed = _start({**environment, "MVN_EXIT": "1"})
    assert "JarsUnavailableError" in failed.communicate(timeout=60)[1]
    assert _start(environment).communicate(timeout=60)[1] == ""
    assert _fetches(environment) == 2


def test_a_directory_made_by_hand_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kafka-server-4.4.0.jar").touch()
    monkeypatch.setenv("CHIMERA_KAFKA_LIBS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert jars.ensure_jars() == tmp_path


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "java" in (jars.missing_programs() or "")
