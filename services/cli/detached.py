"""`chimera up --detach`: starts the fleet in a session of its own and waits until it has answered once."""

from __future__ import annotations

import subprocess
import sys
import time

from rich.console import Console

from services.cli.processes import StateDir
from services.cli.run_record import RunRecord

READY_S = 180.0
POLL_S = 0.1


def start_detached(arguments: list[str], state: StateDir, console: Console) -> int:
    """The exit status: 0 once the printed question was answered, else that of the fleet that did not start.

    What the fleet says while it starts is shown here and kept in `logs/up.log`.
    """
    state.logs.mkdir(parents=True, exist_ok=True)
    log_path = state.logs / "up.log"
    with log_path.open("ab") as log:  # another fleet that runs from here may be writing to it
        begins_at = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S
    with log_path.open(encoding="utf-8", errors="replace") as shown:
        shown.seek(begins_at)
        while time.monotonic() < deadline:
            console.print(shown.read(), end="")
            record = RunRecord.read(state.run_file)
            if record is not None and record.up.pid == process.pid and record.ready:
                time.sleep(POLL_S)  # the last lines are written after the record
                console.print(shown.read(), end="")
                return 0
            if process.poll() is not None:
                console.print(shown.read(), end="")
                return process.returncode or 1
            time.sleep(POLL_S)
    process.terminate()
    console.print(f"not ready within {READY_S:.0f} s; see {log_path}")
    return 1
