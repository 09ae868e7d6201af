"""A model server with moods: told over HTTP to hang, break, lie, crawl or refuse for a while.

Its answers name the attempt they are for (`words`). `python -m loadtest.chaos.backend SETTINGS` (JSON).
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import orjson
import uvloop

from infra.launcher import module_command, project_environment
from loadtest.chaos.words import answer_of
from loadtest.model_server.__main__ import run
from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.http_edge import Exchange, Request
from loadtest.model_server.process import ModelServerProcess
from loadtest.model_server.server import CALLS, ModelServer
from loadtest.model_server.settings import ServerSettings

MOOD_PATH = "/mood"
_ASK_S = 10.0
_ASKED_TIMES = 6
# What a call meets in each mood: one of these, by its attempt.
MOODS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "hangs": ({"hang_after_chunks": 0},),
    "hangs_midway": ({"hang_after_chunks": 1}, {"hang_after_chunks": 3}),
    "breaks": ({"reset_before": True}, {"reset_after_chunks": 2}, {"end_after_chunks": 3}),
    "lies": (
        {"empty": True},
        {"failed_terminal": True},
        {"bad_json_chunk": 2},
        {"html_error": True},
        {"json_not_sse": True},
    ),
    "crawls": ({"ttft_s": 1.0, "chunk_interval_s": 0.25},),
    "refuses": ({"status": 429, "retry_after": 1}, {"status": 503}, {"status": 500}),
}


class MoodyServer(ModelServer):
    """POST /mood `{"mood": name or "", "share": 0..1}`: that share of the calls from now on."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self._words = settings.chunks
        self._mood: tuple[dict[str, Any], ...] = ()
        self._share = 0.0

    async def handle(self, request: Request, exchange: Exchange) -> None:
        if request.path == MOOD_PATH:
            told = orjson.loads(request.body)
            self._mood, self._share = MOODS.get(told["mood"], ()), told["share"]
            await exchange.whole(200, "application/json", b"{}")
            return
        if request.path in CALLS:
            request = self._scripted(request)
        await super().handle(request, exchange)

    def _scripted(self, request: Request) -> Request:
        attempt = request.headers.get(b"x-request-id", b"").decode("latin-1")
        body = orjson.loads(request.body)
        body["x_script"] = {"text": answer_of(attempt, self._words), **self._behaviour(attempt)}
        return replace(request, body=orjson.dumps(body))

    def _behaviour(self, attempt: str) -> dict[str, Any]:
        chance = zlib.crc32(attempt.encode())
        if not self._mood or chance % 1000 >= self._share * 1000:
            return {}
        return self._mood[chance // 1000 % len(self._mood)]


class MoodyProcess(ModelServerProcess):
    """One on a free port. Takes the fields of ServerSettings; `chunks` is how many words an answer has."""

    async def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        settings = self.settings.model_copy(update={"port": self.port})
        command = module_command("loadtest.chaos.backend", settings.model_dump_json())
        await self._start(command, self._listens, env=project_environment())
        self.port = int(self._port_file.read_text())

    async def feel(self, mood: str, share: float = 1.0) -> None:
        """From now on, until told otherwise; "" is no mood."""
        for left in reversed(range(_ASKED_TIMES)):  # on a starved machine a connection may take long
            try:
                async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False) as client:
                    told = {"mood": mood, "share": share}
                    (await client.post(f"{self.root_url}{MOOD_PATH}", json=told)).raise_for_status()
                return
            except httpx.TimeoutException:
                if not left:
                    raise

    async def in_flight(self) -> int:
        """How many calls it works on."""
        async with httpx.AsyncClient(timeout=_ASK_S, trust_env=False) as client:
            answer = await client.get(f"{self.root_url}/state")
        return int(answer.json()["in_flight"])

    def log_of(self, run_id: str) -> list[AttemptRecord]:
        """The ended attempts of one run."""
        file = self.settings.log_file
        lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
        marker = f'"{run_id}-'.encode()
        return [AttemptRecord.model_validate_json(line) for line in lines if marker in line]


def main() -> None:
    settings = ServerSettings.model_validate(json.loads(sys.argv[1]))
    uvloop.run(run(MoodyServer(settings), settings.port_file))


if __name__ == "__main__":
    main()
