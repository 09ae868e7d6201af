"""Clients of the fleet under faults: an open loop of chats that each remember what they were told."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx
from httpx_aiohttp import HttpxAiohttpClient

TIMEOUT_S = 90.0


@dataclass(slots=True)
class Told:
    """What a client heard of its chat: status 0 where the connection broke; `text` of an answer."""

    request_id: str
    stream: bool
    sent_s: float
    status: int = 0
    text: str = ""
    complete: bool = False
    ended_s: float = 0.0


class Clients:
    """Sends `rate` chats a second until stopped; every other one streams."""

    def __init__(self, url: str, rate: float, run_id: str) -> None:
        self._url, self._rate, self._run_id = url, rate, run_id
        self.told: list[Told] = []
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Returns once stopped and every chat has ended, one way or another."""
        begin = time.monotonic()
        chats: set[asyncio.Task[None]] = set()
        async with HttpxAiohttpClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=2000)) as client:
            while not self._stop.is_set():
                number = len(self.told)
                wait = begin + number / self._rate - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                told = Told(f"{self._run_id}-{number}", stream=number % 2 == 1, sent_s=time.time())
                self.told.append(told)
                chats.add(asyncio.create_task(self._chat(client, told)))
            await asyncio.gather(*chats)

    async def _chat(self, client: httpx.AsyncClient, told: Told) -> None:
        body = {
            "model": "auto",
            "messages": [{"role": "user", "content": f"question {told.request_id}"}],
            "stream": told.stream,
            "x_marker": told.request_id,
        }
        headers = {"x-request-id": told.request_id}
        try:
            if told.stream:
                await self._streamed(client, told, body, headers)
            else:
                answer = await client.post(f"{self._url}/v1/chat/completions", json=body, headers=headers)
                told.status = answer.status_code
                if told.status == httpx.codes.OK:
                    told.text, told.complete = answer.json()["choices"][0]["message"]["content"], True
        except httpx.HTTPError:
            told.complete = False
        told.ended_s = time.time()

    async def _streamed(
        self, client: httpx.AsyncClient, told: Told, body: dict[str, object], headers: dict[str, str]
    ) -> None:
        url = f"{self._url}/v1/chat/completions"
        async with client.stream("POST", url, json=body, headers=headers) as answer:
            told.status = answer.status_code
            if told.status != httpx.codes.OK:
                await answer.aread()
                return
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    told.complete = True
                elif line.startswith("data: "):
                    told.text += _content(line)


def _content(line: str) -> str:
    event = httpx.Response(200, content=line.removeprefix("data: ")).json()
    choices = event.get("choices") or []
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)
