"""`python -m loadtest.model_server.measure`: what this server costs in its own process, under aiohttp.

Open loop: requests start by the clock at `--rate`, whatever the answers do. Prints requests per second
answered, CPU milliseconds of the server per request, and latency percentiles in milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiohttp
import orjson
import psutil
import uvloop
from cyclopts import App

from loadtest.model_server.process import ModelServerProcess

app = App(help="Measure the model server.")
_PROMPT = "Tell me in one sentence what a message bus is good for."


@app.default
def measure(
    *,
    rate: float = 300,
    seconds: float = 8,
    chunks: int = 64,
    chunk_interval_s: float = 0,
    stream: bool = False,
) -> None:
    """One run; times are open loop."""
    uvloop.run(_run(rate, seconds, chunks, chunk_interval_s, stream))


async def _run(rate: float, seconds: float, chunks: int, chunk_interval_s: float, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": _PROMPT}], "stream": stream}
    async with ModelServerProcess(chunks=chunks, chunk_interval_s=chunk_interval_s) as server:
        process = psutil.Process(server.pid)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"{server.base_url}/chat/completions"
            await _load(session, url, body, rate, 1)
            before = _cpu_s(process)
            began = time.perf_counter()
            latencies = await _load(session, url, body, rate, seconds)
            took = time.perf_counter() - began
            used = _cpu_s(process) - before
    _print(latencies, took, used)


async def _load(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], rate: float, seconds: float
) -> list[float]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    calls = []
    for at in range(int(rate * seconds)):
        due = start + at / rate
        if (left := due - loop.time()) > 0:
            await asyncio.sleep(left)
        calls.append(asyncio.create_task(_call(session, url, body, due)))
    return list(await asyncio.gather(*calls))


async def _call(session: aiohttp.ClientSession, url: str, body: dict[str, Any], due: float) -> float:
    async with session.post(
        url, data=orjson.dumps(body), headers={"content-type": "application/json"}
    ) as answer:
        await answer.read()
        answer.raise_for_status()
    return asyncio.get_running_loop().time() - due


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _print(latencies: list[float], took_s: float, cpu_s: float) -> None:
    ordered = sorted(latencies)
    at = {name: ordered[int(len(ordered) * share)] * 1000 for name, share in (("p50", 0.5), ("p95", 0.95))}
    print(
        f"{len(ordered)} answered, {len(ordered) / took_s:.0f}/s, "
        f"server CPU {cpu_s / len(ordered) * 1000:.3f} ms/request ({cpu_s / took_s:.0%} of a core), "
        + ", ".join(f"{name} {value:.2f} ms" for name, value in at.items())
    )


if __name__ == "__main__":
    app()
    sys.exit(0)
