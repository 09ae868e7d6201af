"""`chimera` as a user calls it, on the fleet of a test."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson

from loadtest.stage import Stage


async def chimera(stage: Stage, *arguments: str) -> Any:
    """What the command prints with --json."""
    code, out, error = await run_chimera(stage, *arguments, "--json")
    assert code == 0, error
    return orjson.loads(out)


async def run_chimera(stage: Stage, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr."""
    environment = {
        "CHIMERA_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap_servers,
        "CHIMERA_BROKER": stage.options.broker,
        "CHIMERA_DATABASE_URL": stage.database_url,
        "CHIMERA_FLEET_FILE": str(stage.state.fleet_file),
        "CHIMERA_BLOB_DIR": str(stage.state.path / "blobs"),
        "PATH": "/usr/bin:/bin",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()
