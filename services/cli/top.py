"""`chimera top`: the fleet as it works, refreshed in the terminal every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import App, Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from schemas.codec import SchemaError, decode
from schemas.headers import to_text
from schemas.messages import Message
from services.adapters.kafka.log_reader import KafkaLogReader
from services.cli.bus_reading import answering
from services.cli.running_fleet import RunningFleet, find_fleet
from services.core.fleet_table import FleetTable, stall_bounds
from services.core.recent_ends import RecentEnds
from services.ports import BusError, InRecord, StartAt
from services.runtime.fleet_view import FleetView

top_app = App(name="top", help="The fleet as it works, live.")
_console = partial(Console, highlight=False, markup=False, emoji=False)
console = _console()
_PIPE_WIDTH = 160  # in a pipe there is no window whose width counts
_EVERY_S = 1.0
_BAR = 10
_BAR_FROM = 110  # columns of the terminal


@top_app.default
def top(
    *,
    window_s: float = 10.0,
    once: bool = False,
    json: bool = False,
    state_dir: Annotated[Path, Parameter(name="--state-dir")] = Path(".chimera"),
) -> None:
    """Show pools, workers, slots, queues, rates and failures; Ctrl-C ends it.

    Parameters
    ----------
    window_s
        Over how many seconds rates and times are taken.
    once
        Watch for one window, print it and end.
    json
        One JSON document after one window.
    state_dir
        Where `chimera up` keeps its state; CHIMERA_* variables win over it.
    """
    watch = _Watch(find_fleet(state_dir), window_s)
    try:
        asyncio.run(watch.once(json) if once or json else watch.live())
    except KeyboardInterrupt:
        return


class _Watch:
    def __init__(self, running: RunningFleet, window_s: float) -> None:
        self._running, self._window_s = running, window_s
        self._ends = RecentEnds(window_s)
        table = FleetTable(stalled_after_s=stall_bounds(running.fleet))
        self._view = FleetView(self._reader(running.names.fleet, [0]), table, time.monotonic)

    def _reader(self, topic: str, partitions: Sequence[int]) -> KafkaLogReader:
        running = self._running
        return KafkaLogReader(
            running.bootstrap_servers,
            running.traits,
            topic=topic,
            partitions=partitions,
            client_id="chimera-top",
            fetch_max_wait_ms=running.traits.fetch_max_wait_ms["batch"],
        )

    async def once(self, as_json: bool) -> None:
        async with self._watching():
            await asyncio.sleep(self._window_s)
            rows = self._rows()
        if as_json:
            print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        else:
            wide = console if console.is_terminal else _console(width=_PIPE_WIDTH)
            wide.print(_table(rows, wide.width))

    async def live(self) -> None:
        async with self._watching():
            with Live(_table([], console.width), console=console, auto_refresh=False) as shown:
                while True:
                    shown.update(_table(self._rows(), console.width), refresh=True)
                    await asyncio.sleep(_EVERY_S)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Once the fleet is known. Raises BusError where its broker is away then; later it is waited for."""
        tasks = [asyncio.create_task(self._view.run()), asyncio.create_task(self._results())]
        try:
            async with answering(self._running):
                await self._view.caught_up.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _results(self) -> None:
        reader = self._reader(self._running.names.results, range(self._running.fleet.partitions))
        try:
            await reader.start(at=StartAt("end"))
            while True:
                try:
                    records = await reader.poll(timeout_ms=250, max_records=1_000)
                except BusError:
                    await asyncio.sleep(_EVERY_S)
                    continue
                for record in records:
                    self._hear(record)
        finally:
            await reader.stop()

    def _hear(self, record: InRecord) -> None:
        try:
            message = decode(to_text(record.headers), record.value)
        except SchemaError:
            return
        if isinstance(message, Message):
            self._ends.heard(message, time.monotonic())

    def _rows(self) -> list[dict[str, Any]]:
        now_s, table = self._view.now_s(), self._view.table
        census = table.census(now_s)
        rows = []
        for pool in self._running.fleet.pools:
            alive = table.alive(pool.name, now_s)
            rates = self._ends.rates(pool.name, time.monotonic())
            rows.append(
                {
                    "pool": pool.name,
                    "mode": table.mode(pool.name),
                    "ready": census[pool.name, "ready"],
                    "loading": census[pool.name, "loading"],
                    "dead": census[pool.name, "dead"],
                    "in_flight": sum(beat.in_flight for beat in alive),
                    "slots": sum(beat.slots for beat in alive),
                    "queued": sum(beat.queued for beat in alive),
                    "queue_s": round(sum(beat.queue_seconds for beat in alive), 2),
                    "done_per_s": round(rates.done, 2),
                    "tokens_per_s": round(rates.tokens, 1),
                    "queue_ms": round(rates.queue_ms),
                    "first_token_ms": round(rates.first_token_ms),
                    "failures_per_s": {kind: round(rate, 2) for kind, rate in rates.failures.items()},
                    "backends": [
                        f"{state.base_url} {state.health}"
                        for beat in alive
                        for state in beat.backends
                        if state.health != "healthy"
                    ],
                }
            )
        return rows


def _table(rows: Sequence[dict[str, Any]], width: int) -> Table:
    table = Table(box=None, pad_edge=False, title="chimera top", title_justify="left")
    headings = ("pool", "mode", "workers", "slots", "waits", "wait s", "done/s", "tok/s")
    for heading in (*headings, "queue", "first", "trouble"):  # queue, first: p95 in ms
        table.add_column(heading, no_wrap=heading != "trouble")
    for row in rows:
        workers = Text(f"{row['ready']}" + (f" +{row['loading']} loading" if row["loading"] else ""))
        if row["dead"]:
            workers.append(f" {row['dead']} dead", style="red")
        trouble = [f"{kind} {rate}/s" for kind, rate in row["failures_per_s"].items()] + row["backends"]
        cells = [row[name] for name in ("queued", "queue_s", "done_per_s", "tokens_per_s")]
        cells += [row["queue_ms"], row["first_token_ms"]]
        table.add_row(
            row["pool"],
            row["mode"],
            workers,
            _slots(row, width),
            *(str(cell) for cell in cells),
            ", ".join(trouble),
        )
    return table


def _slots(row: dict[str, Any], width: int) -> str:
    used = f"{row['in_flight']}/{row['slots']}"
    if width < _BAR_FROM:
        return used
    full = round(_BAR * row["in_flight"] / row["slots"]) if row["slots"] else 0
    return f"{'█' * full}{'·' * (_BAR - full)} {used}"
