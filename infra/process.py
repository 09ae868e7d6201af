"""A child process that cannot outlive its parent, and the signals that faults are made of.

Law: a child is only ever signalled by the pid of the process object that started it, and a child whose
parent is SIGKILLed is killed by the kernel (Linux; elsewhere `stop` is all there is).
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_TETHERED = Path(__file__).with_name("tethered.py")
_LOG_TAIL_BYTES = 4096

# Below the kernel's ephemeral range (32768 up): a port from bind(0) may be taken by any outgoing connection
# before a slow server binds it, and again between kill and restart.
_PORTS = range(15000, 32000)


class ProcessFailedError(RuntimeError):
    """A child ended or stayed silent when it should serve; the message ends with its log's tail."""


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 that nobody listens on now; OSError when none is found."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port on 127.0.0.1 between 15000 and 32000")


def _tethered(command: Sequence[str], user: str | None) -> list[str]:
    as_user = () if user is None else ("--user", user)
    return [sys.executable, "-I", "-S", str(_TETHERED), str(os.getpid()), *as_user, *command]


class ChildProcess:
    """One child with its output in a file. Needs no event loop of its own: it may be started and awaited on
    different loops (session fixtures do). Start it from a thread that lives as long as the child must: the
    kernel's parent-death signal follows the starting *thread*."""

    def __init__(self, name: str, log_path: Path) -> None:
        self._name = name
        self._log_path = log_path
        self._popen: subprocess.Popen[bytes] | None = None
        self._frozen = False

    @property
    def pid(self) -> int:
        """Process id of the running child; ProcessFailedError when there is none."""
        popen = self._popen
        if popen is None or popen.poll() is not None:
            raise ProcessFailedError(f"{self._name} is not running")
        return popen.pid

    @property
    def running(self) -> bool:
        """True from spawn to exit, also while frozen."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def log_path(self) -> Path:
        """File with the child's stdout and stderr, appended over restarts."""
        return self._log_path

    def spawn(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, *, user: str | None = None
    ) -> None:
        """Start the child, unless one runs: ProcessFailedError. `user`: whom it becomes (as root only)."""
        if self.running:
            raise ProcessFailedError(f"{self._name} is already running as {self.pid}")
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                _tethered(command, user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                # Ctrl-C at a terminal must reach the launcher alone: it stops its children in order.
                start_new_session=True,
            )
        self._frozen = False

    async def stop(self, grace_s: float) -> int | None:
        """SIGTERM, then SIGKILL after `grace_s`; return the exit code (None: nothing ran)."""
        popen = self._popen
        if popen is None:
            return None
        self.thaw()
        self._send(signal.SIGTERM)
        try:
            return await asyncio.to_thread(popen.wait, grace_s)
        except subprocess.TimeoutExpired:
            return await self.kill()

    async def kill(self) -> int | None:
        """SIGKILL, frozen or not; return the exit code once the kernel has taken the process away."""
        popen = self._popen
        if popen is None:
            return None
        self._send(signal.SIGKILL)
        return await asyncio.to_thread(popen.wait)

    def freeze(self) -> None:
        """SIGSTOP: sockets stay open and nothing answers, as on a machine that hangs."""
        self._send(signal.SIGSTOP)
        self._frozen = True
        if self.running and sys.platform == "linux":
            # Its threads stop one after the other: until the last one has, it may still answer.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """SIGCONT after `freeze`; nothing otherwise."""
        if self._frozen:
            self._send(signal.SIGCONT)
            self._frozen = False

    def rss_bytes(self) -> int:
        """Resident memory of the child; ProcessFailedError when it does not run."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def log_tail(self) -> str:
        """Return the last 4 KiB of the child's output."""
        if not self._log_path.exists():
            return ""
        with self._log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")

    def failure(self, what: str) -> ProcessFailedError:
        """Return the error that says what went wrong with this child, with its exit code and log."""
        code = self._popen.poll() if self._popen is not None else None
        state = "still running" if code is None else f"exit code {code}"
        return ProcessFailedError(f"{self._name}: {what} ({state}); log: {self.log_tail() or 'empty'}")

    def _send(self, number: signal.Signals) -> None:
        # Popen polls first, so a pid that the kernel has given to somebody else is never signalled.
        if self._popen is not None:
            self._popen.send_signal(number)


async def until_signalled(*numbers: signal.Signals) -> signal.Signals:
    """Return the first of `numbers` that this process receives (SIGTERM and SIGINT when none is named)."""
    loop = asyncio.get_running_loop()
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    wanted = numbers or (signal.SIGTERM, signal.SIGINT)
    for number in wanted:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        return await received.get()
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)
