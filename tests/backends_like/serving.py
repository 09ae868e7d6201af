"""Runs a server made from the model server's parts as a process, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

from cyclopts import App, Parameter

from loadtest.model_server.server import ModelServer
from loadtest.model_server.settings import ServerSettings


def run_server(made: type[ModelServer]) -> None:
    """Takes the settings of the model server from the command line."""
    app = App(name=made.__name__)

    @app.default
    def serve(settings: Annotated[ServerSettings | None, Parameter(name="*")] = None) -> None:
        told = settings or ServerSettings()
        asyncio.run(_until_stopped(made(told), told))

    app()


async def _until_stopped(server: ModelServer, settings: ServerSettings) -> None:
    await server.start()
    if settings.port_file is not None:
        half = settings.port_file.with_name("port.new")
        half.write_text(f"{server.port}\n")
        os.replace(half, settings.port_file)  # a reader sees the whole number or no file
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await server.stop()
