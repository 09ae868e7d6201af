"""The peers' own Python environment, made from their hashed lock file when it is first needed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from infra.launcher import project_environment
from infra.process import ProcessFailedError

_HERE = Path(__file__).parent
_LOCK = _HERE / "requirements.lock"
_MARK = "ready"


async def peers_python(folder: Path) -> Path:
    """The interpreter of an environment in `folder` that is as new as the lock file. ProcessFailedError."""
    python, mark = folder / "bin" / "python", folder / _MARK
    if mark.exists() and mark.stat().st_mtime >= _LOCK.stat().st_mtime:
        return python
    await _run(sys.executable, "-m", "venv", str(folder))
    uv = Path(sys.executable).parent / "uv"
    await _run(str(uv), "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(_LOCK))
    mark.touch()
    return python


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise ProcessFailedError(f"{' '.join(command[:3])}: {said.decode()[-2000:]}")


def peer_environment(**variables: str) -> Mapping[str, str]:
    """For a peer's process: the project to be imported from, and where its servers are."""
    return {**project_environment(), "PATH": os.environ.get("PATH", ""), **variables}
