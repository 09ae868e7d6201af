"""The doctor's questions: short streamed chats to every pool at once, each told from the others by a word."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import orjson

from services.cli.running_fleet import RunningFleet
from services.core.diagnosis import Probe

_TIMEOUT_S = 60.0
_MOST_TOKENS = 24


async def ask_all(running: RunningFleet, each: int) -> list[Probe]:
    """`each` probes of every pool that chats, all at the same time."""
    if running.url is None:
        return []
    pools = [pool.name for pool in running.fleet.pools if "chat" in pool.capabilities] * each
    words = [f"w{uuid.uuid4().hex[:8]}" for _ in pools]
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
        asking = [
            _ask(client, running.url, pool, word, words) for pool, word in zip(pools, words, strict=True)
        ]
        return list(await asyncio.gather(*asking))


async def _ask(client: httpx.AsyncClient, url: str, pool: str, word: str, words: Sequence[str]) -> Probe:
    body = {
        "model": pool,
        "stream": True,
        "max_tokens": _MOST_TOKENS,
        "messages": [{"role": "user", "content": f"Repeat this word and say nothing else: {word}"}],
    }
    began, heard = time.monotonic(), _Heard()
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            if answer.is_success:
                async for line in answer.aiter_lines():
                    heard.line(line)
            else:
                heard.fault = f"status {answer.status_code}: {(await answer.aread())[:200]!r}"
    except (httpx.HTTPError, ValueError) as fault:
        heard.fault = type(fault).__name__
    # A small model may not repeat its word; but another one's word can only come from a mix-up.
    mixed = any(other in heard.text for other in words if other != word)
    said = heard.fault or ("" if heard.done else "no [DONE]")
    return Probe(pool, not said and not mixed, time.monotonic() - began, heard.chunks, mixed, said)


@dataclass(slots=True)
class _Heard:
    text: str = ""
    chunks: int = 0
    done: bool = False
    fault: str = ""

    def line(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            event = orjson.loads(line.removeprefix("data: "))
            if "error" in event:
                self.fault = str(event["error"])[:200]
            self.text += _content(event)
            self.chunks += 1


def _content(event: object) -> str:
    choices = event.get("choices", []) if isinstance(event, dict) else []
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)
