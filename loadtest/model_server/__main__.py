"""`python -m loadtest.model_server --port 0 --port-file F`: runs one model server until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import App, Parameter
from pydantic import ValidationError

from loadtest.model_server.server import ModelServer
from loadtest.model_server.settings import ServerSettings

app = App(name="model_server", help="A model server that answers by script, delay or latency law.")


@app.default
def serve(settings: Annotated[ServerSettings, Parameter(name="*")] = ServerSettings()) -> None:  # noqa: B008 - frozen
    """Run until SIGTERM or SIGINT."""
    uvloop.run(run(ModelServer(settings), settings.port_file))


async def run(server: ModelServer, port_file: Path | None) -> None:
    """Serves until SIGTERM or SIGINT; `port_file` gets the port once it listens."""
    await server.start()
    if port_file is not None:
        _tell(port_file, server.port)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    await server.stop()


def _tell(file: Path, port: int) -> None:
    """A reader sees the whole number or no file."""
    half = file.with_name(file.name + ".new")
    half.write_text(f"{port}\n")
    os.replace(half, file)


def main() -> int:
    """Returns the exit code: 2 where the settings are wrong, 1 where the port is taken."""
    try:
        app()
    except ValidationError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
