"""O3 between processes: a service that is told something wrong ends with status 78 and says where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.lifecycle import CONFIG_ERROR_EXIT

SERVICES = ["services.ingress", "services.worker_pools", "services.orchestrator"]
WRONG = "pools:\n  - name: a\n    model: m\n    base_url: http://x/v1\n    slots: many\n"


def refused(module: str, *arguments: str, **environment: str) -> str:
    """What the process says on stderr before it ends by itself, with the status that nobody restarts."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == CONFIG_ERROR_EXIT, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("module", SERVICES)
def test_o3_a_service_refuses_a_wrong_fleet_file(module: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    said = refused(module, CHIMERA_FLEET_FILE=str(file), CHIMERA_POOL="a")
    assert f"{file}:5: pools[0].slots: 'many': " in said
    assert "integer" in said


def test_o3_the_whole_fleet_refuses_a_wrong_fleet_file(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    said = refused("services.cli", "up", "--fleet", str(file), "--state-dir", str(tmp_path / "state"))
    assert f"{file}:5: pools[0].slots" in said


@pytest.mark.parametrize(
    ("module", "variable", "value"),
    [
        ("services.ingress", "CHIMERA_PORT", "http"),
        ("services.ingress", "CHIMERA_HOST", "0.0.0.0"),  # noqa: S104 - refused, which is the point
        ("services.worker_pools", "CHIMERA_DRAIN_S", "-1"),
        ("services.orchestrator", "CHIMERA_BROKER", "rabbit"),
    ],
)
def test_o3_a_wrong_variable_is_named(module: str, variable: str, value: str) -> None:
    assert variable in refused(module, CHIMERA_POOL="chat-fast", **{variable: value})


def test_o3_a_pool_that_the_fleet_has_not_is_named_with_those_that_it_has() -> None:
    said = refused("services.worker_pools", CHIMERA_POOL="chat-slow")
    assert "chat-slow" in said
    assert "chat-fast" in said
