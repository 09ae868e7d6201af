"""The record of a running `chimera up`: what it started, so that `down` stops that and nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

SAME_PROCESS_S = 2.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A pid and when it began: pids are used again, the pair is not."""

    name: str
    pid: int
    created_s: float

    @staticmethod
    def of(name: str, pid: int) -> ProcessMark:
        return ProcessMark(name, pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The process, if it is still the one that was marked."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created_s) < SAME_PROCESS_S
        except psutil.NoSuchProcess:
            return None
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`ready` once the first question was answered; `url` of the edge; `curl` as it was printed.

    `variables`: the `CHIMERA_*` ones that its services were given, so that other commands find the same
    broker, database and blobs.
    """

    up: ProcessMark
    processes: tuple[ProcessMark, ...]
    ready: bool
    url: str
    curl: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)  # the database's address may have a password in it
        partial.write_text(json.dumps(asdict(self), indent=2))
        os.replace(partial, path)

    @staticmethod
    def read(path: Path) -> RunRecord | None:
        """The record, or None where there is none. Raises ValueError where it is no record."""
        try:
            data = json.loads(path.read_text())
            return RunRecord(
                up=ProcessMark(**data["up"]),
                processes=tuple(ProcessMark(**mark) for mark in data["processes"]),
                ready=data["ready"],
                url=data["url"],
                curl=data["curl"],
                variables=data.get("variables", {}),
            )
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{path}: expected the record of a run, as `chimera up` writes it") from None


@contextmanager
def sole_user(lock_file: Path) -> Iterator[bool]:
    """Whether nobody else is in such a block of this file; the kernel lets go of it when its holder dies."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


async def stop_run(path: Path, *, grace_s: float) -> list[str]:
    """Stops what the record names and returns the names of what had to be killed; removes the record."""
    record = RunRecord.read(path)
    if record is None:
        return []
    up = record.up.process()
    if up is not None:
        up.terminate()
        await _gone([record.up], grace_s)
    left = [mark for mark in (record.up, *record.processes) if mark.process() is not None]
    for mark in left:
        process = mark.process()
        if process is not None:
            process.kill()
    await _gone(left, 10.0)
    path.unlink(missing_ok=True)
    return [mark.name for mark in left]


async def _gone(marks: list[ProcessMark], timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while any(mark.process() for mark in marks) and loop.time() < deadline:
        await asyncio.sleep(POLL_S)
