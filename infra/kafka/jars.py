"""Fetch the broker's jars once per machine, however many test runs start at the same moment."""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POM = Path(__file__).with_name("pom.xml")
_FETCH_TIMEOUT_S = 600
_DONE = ".complete"


class JarsUnavailableError(RuntimeError):
    """Maven could not fetch the jars; the message ends with what Maven said."""


def kafka_version() -> str:
    """Return the Kafka version that pom.xml names."""
    found = re.search(r"<kafka\.version>([\d.]+)</kafka\.version>", _POM.read_text())
    if found is None:
        raise JarsUnavailableError(f"{_POM} names no kafka.version")
    return found[1]


def libs_dir() -> Path:
    """Where the jars are or will be: CHIMERA_KAFKA_LIBS, else `~/.cache/chimera/kafka/<version>`."""
    configured = os.environ.get("CHIMERA_KAFKA_LIBS")
    return Path(configured) if configured else Path.home() / ".cache" / "chimera" / "kafka" / kafka_version()


def missing_programs() -> str | None:
    """Return why a broker cannot run here, or None. Maven is needed only until the jars are in the cache."""
    if shutil.which("java") is None:
        return "Apache Kafka needs `java` (17 or newer) on the PATH"
    if not _present(libs_dir()) and shutil.which("mvn") is None:
        return "Apache Kafka needs `mvn` on the PATH to fetch its jars once"
    return None


def ensure_jars() -> Path:
    """Return the directory with the jars, fetching them first (blocking, up to a minute) if need be.

    Raises JarsUnavailableError. A directory given by CHIMERA_KAFKA_LIBS that holds them is used as it is.
    """
    libs = libs_dir()
    if _present(libs):
        return libs
    libs.parent.mkdir(parents=True, exist_ok=True)
    with _locked(libs.parent / f"{libs.name}.lock"):
        if not _present(libs):
            _fetch(libs)
    return libs


def _present(libs: Path) -> bool:
    # Ours carries a mark, because a killed fetch leaves half the jars; a directory made by hand has none.
    if (libs / _DONE).exists():
        return True
    return "CHIMERA_KAFKA_LIBS" in os.environ and any(libs.glob("kafka-server-[0-9]*.jar"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel if we die
        yield


def _fetch(libs: Path) -> None:
    shutil.rmtree(libs, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
    command = ["mvn", "-q", "-B", "-f", str(_POM), *goal]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JarsUnavailableError(f"fetching Kafka's jars: {error}") from error
    if done.returncode != 0:
        raise JarsUnavailableError(f"fetching Kafka's jars: mvn said: {(done.stdout + done.stderr)[-2000:]}")
    (libs / _DONE).touch()
