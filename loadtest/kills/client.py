"""Clients of the fleet under faults: an open loop of chats that each remember what they were told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_aiohttp import HttpxAiohttpClient

TIMEOUT_S = 90.0
# A refused connection is a time-out to the transport that is used here.
_NOBODY_THERE = (httpx.ConnectError, httpx.ConnectTimeout)


@dataclass(slots=True)
class Told:
    """What a client heard of its chat: status 0 where the connection broke; `text` of an answer.

    code: of the error it was told, by status or as the last event of its stream. hung_up: by the client
    itself. reached: there was somebody to ask. key: its Idempotency-Key. edge: the ingress that it asked.
    """

    request_id: str
    stream: bool
    sent_s: float
    status: int = 0
    text: str = ""
    complete: bool = False
    ended_s: float = 0.0
    code: str | None = None
    hung_up: bool = False
    reached: bool = True
    key: str | None = None
    edge: str = ""


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
                chats.add(asyncio.create_task(chat(client, self._url, told, body_of(told))))
            await asyncio.gather(*chats)


def body_of(told: Told, model: str = "auto") -> dict[str, Any]:
    """A chat whose `x_marker` is its request_id."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"question {told.request_id}"}],
        "stream": told.stream,
        "x_marker": told.request_id,
    }


async def chat(
    client: httpx.AsyncClient,
    url: str,
    told: Told,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Asks, and fills in `told`; a connection that breaks is what was heard, no error."""
    sent = {"x-request-id": told.request_id, **(headers or {})}
    target = f"{url}/v1/chat/completions"
    try:
        if told.stream:
            await _streamed(client, target, told, body, sent)
        else:
            answer = await client.post(target, json=body, headers=sent)
            told.status = answer.status_code
            if told.status == httpx.codes.OK:
                told.text, told.complete = answer.json()["choices"][0]["message"]["content"], True
            else:
                told.code = _code(answer)
    except httpx.HTTPError as fault:
        told.complete, told.reached = False, not isinstance(fault, _NOBODY_THERE)
    finally:
        told.ended_s = time.time()


async def _streamed(
    client: httpx.AsyncClient, target: str, told: Told, body: Mapping[str, Any], headers: Mapping[str, str]
) -> None:
    async with client.stream("POST", target, json=body, headers=headers) as answer:
        told.status = answer.status_code
        if told.status != httpx.codes.OK:
            await answer.aread()
            told.code = _code(answer)
            return
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                told.complete = True
            elif line.startswith("data: "):
                event = httpx.Response(200, content=line.removeprefix("data: ")).json()
                told.text += _content(event)
                if "error" in event:
                    told.code = str(event["error"].get("code"))


def _content(event: Mapping[str, Any]) -> str:
    choices = event.get("choices") or []
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)


def _code(answer: httpx.Response) -> str:
    """The error's code; its type where it has none; the body where it has not OpenAI's shape."""
    try:
        error = answer.json()["error"]
        return str(error["code"] or error["type"])
    except (ValueError, KeyError, TypeError):
        return f"no error of the API: {answer.text[:80]}"
