"""`chimera loadtest long`: one streamed task that outlasts two rebalances of its pool, on Apache Kafka."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from loadtest.kills.evidence import gather
from loadtest.long_task.report import LongReport, Others
from loadtest.long_task.witness import GroupWatch, parkings, tried_twice
from loadtest.model_server.process import ModelServerProcess
from loadtest.stage import Stage, StageOptions
from schemas.topics import TopicNames

POOL = "long"
WORKER = f"worker-{POOL}"
MARKER = "the-long-one"
CHUNK_S = 5.0  # between two chunks, unscaled
SETTLE_S = 60.0  # for the bookkeeper to write the last row
_FLEET = """
version: 1
prefix: long.
partitions: 4
pools:
  - name: long
    model: slow
    base_url: {base_url}
    slots: 4
    context_tokens: 8192
    timeouts: {{connect_s: 2.0, first_token_s: {first_token_s}, idle_s: {idle_s}, total_s: {total_s}}}
"""


@dataclass(frozen=True, slots=True)
class LongOptions:
    """The task streams for `seconds`; a third worker joins after a third of them and leaves after two.

    rate: batch calls a second beside it. time_scale: of the services' own timers, the pool's time-outs and
    the pace of the stream; what Kafka is told (sessions, heartbeats) is never scaled.
    """

    seconds: float = 31 * 60.0
    rate: float = 0.2
    time_scale: float = 1.0

    @property
    def interval_s(self) -> float:
        return CHUNK_S * self.time_scale

    @property
    def chunks(self) -> int:
        return int(self.seconds / self.interval_s) + 1

    @property
    def total_s(self) -> float:
        """Time-out of the pool, and the task's deadline."""
        return 1.5 * self.seconds + 30.0

    def fleet(self, base_url: str) -> str:
        """Below five seconds a time-out would measure how busy this machine is."""
        idle_s, first_token_s = max(5.0, 60 * self.time_scale), max(5.0, 30 * self.time_scale)
        return _FLEET.format(
            base_url=base_url, first_token_s=first_token_s, idle_s=idle_s, total_s=self.total_s
        )


async def run_long(options: LongOptions, say: Callable[[str], None]) -> LongReport:
    """The whole run, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="chimera-long-") as folder:
        async with ModelServerProcess(model="slow", chunks=2) as server:
            stage_options = StageOptions(
                Path(folder),
                options.fleet(server.base_url),
                environment={"CHIMERA_TIME_SCALE": str(options.time_scale)},
            )
            async with Stage(stage_options, say) as stage:
                await stage.start_another(WORKER, f"{WORKER}-2")
                return await _Run(options, stage, server, say).play()


class _Run:
    def __init__(
        self, options: LongOptions, stage: Stage, server: ModelServerProcess, say: Callable[[str], None]
    ) -> None:
        self._options, self._stage, self._server = options, stage, server
        self._began = time.monotonic()
        self._tell = say
        self._sent: list[asyncio.Task[bool]] = []

    def _say(self, words: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.1f} s  {words}")

    async def play(self) -> LongReport:
        names, options = TopicNames(self._stage.fleet.prefix), self._options
        group = names.lane_group(POOL, "standard")
        loading = asyncio.create_task(self._load())
        try:
            async with GroupWatch(self._stage, group, max(0.2, 2 * options.time_scale)) as watch:
                self._began = time.monotonic()
                chat = asyncio.create_task(self._long_chat())
                await self._rebalances(chat)
                fault = await chat
                seconds = time.monotonic() - self._began
                self._say(f"the stream has ended: {fault or 'whole'}")
        finally:
            loading.cancel()
        answered = await asyncio.gather(*self._sent)
        return await self._report(seconds, fault, watch.rebalances, sum(answered))

    async def _rebalances(self, chat: asyncio.Task[str]) -> None:
        """One worker joins, and leaves again; sooner over where the stream is."""
        third, part_s = f"{WORKER}-3", self._options.seconds / 3
        await asyncio.wait([chat], timeout=part_s)
        await self._stage.start_another(WORKER, third)
        self._say("a third worker has joined")
        await asyncio.wait([chat], timeout=2 * part_s - (time.monotonic() - self._began))
        await self._stage.services.pop(third).stop()
        self._say("the third worker has left")

    async def _long_chat(self) -> str:
        """Empty, or what was wrong with the stream."""
        options = self._options
        script = {"text": _words(options.chunks), "chunks": options.chunks}
        fields = _body(MARKER, script | {"chunk_interval_s": options.interval_s}) | {"stream": True}
        headers = {
            "x-request-id": MARKER,
            "x-chimera-priority": "standard",
            "x-chimera-deadline-ms": str(int(options.total_s * 1000)),
        }
        url = f"{self._stage.url}/v1/chat/completions"
        text, last = "", ""
        try:
            async with (
                httpx.AsyncClient(timeout=60.0, trust_env=False) as client,
                client.stream("POST", url, json=fields, headers=headers) as answer,
            ):
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        text += _content(line)
                    last = line or last
        except httpx.HTTPError as error:
            return repr(error)
        if last != "data: [DONE]":
            return f"it ended with {last!r}"
        return "" if text == script["text"] else f"{len(text)} characters came, not those that were sent"

    async def _load(self) -> None:
        while True:
            self._sent.append(asyncio.create_task(self._batch_call(f"batch-{len(self._sent)}")))
            await asyncio.sleep(1 / self._options.rate)

    async def _batch_call(self, marker: str) -> bool:
        headers = {"x-request-id": marker, "x-chimera-priority": "batch"}
        fields = _body(marker, {"text": marker, "delay_s": 0.5})
        try:
            async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
                url = f"{self._stage.url}/v1/chat/completions"
                answer = await client.post(url, json=fields, headers=headers)
        except httpx.HTTPError as error:
            self._say(f"{marker}: {error!r}")
            return False
        return answer.status_code == httpx.codes.OK and marker in answer.text

    async def _report(self, seconds: float, fault: str, rebalances: int, answered: int) -> LongReport:
        stage = self._stage
        names = TopicNames(stage.fleet.prefix)
        loop = asyncio.get_running_loop()
        until = loop.time() + SETTLE_S
        while True:
            evidence = await gather(
                stage.bootstrap_servers, names, [POOL], stage.fleet.partitions, stage.database_url
            )
            (task_id,) = [task for task, request in evidence.accepted.items() if request == MARKER]
            rows = [row for row in evidence.ledger.values() if row["task_id"] == task_id]
            if task_id in evidence.tasks or loop.time() > until:
                break
            await asyncio.sleep(1.0)
        log = self._server.log()
        others = [record for record in log if record.marker != MARKER]
        parked = await parkings(stage, task_id)
        named = {*parked.rows, *parked.renewals, *(row["attempt"] for row in rows)}
        return LongReport(
            seconds=seconds,
            whole=not fault,
            attempts=len(log) - len(others),
            rows=len(rows),
            outcomes=tuple(kind for kind, _ in evidence.terminals.get(task_id, [])),
            rebalances=rebalances,
            parked=len(parked.rows),
            renewals=len(parked.renewals),
            one_attempt=len(named) == 1,
            others=Others(len(self._sent), answered, tried_twice(others, evidence)),
            fault=fault,
        )


def _body(marker: str, script: dict[str, object]) -> dict[str, object]:
    messages = [{"role": "user", "content": f"say {marker}"}]
    return {"model": POOL, "messages": messages, "x_marker": marker, "x_script": script}


def _words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def _content(line: str) -> str:
    event = orjson.loads(line.removeprefix("data: "))
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
