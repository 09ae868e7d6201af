"""The question that `chimera up` asks itself before it says that it is up, and the curl that it prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

QUESTION = "What is the capital of France?"
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked and what came back."""

    question: str
    text: str


def _body() -> dict[str, Any]:
    return {"model": "auto", "max_tokens": 32, "messages": [{"role": "user", "content": QUESTION}]}


def curl_text(url: str) -> str:
    """A command to paste into a shell, as it is."""
    body = json.dumps(_body())
    return f"curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


async def warm_up(base_url: str) -> None:
    """One token of a model server that just started, so that the first question does not pay for it."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        (await client.post(f"{base_url}/v1/chat/completions", json=body)).raise_for_status()


async def ask(url: str) -> Answer:
    """Asks the fleet over its own API. Raises httpx.HTTPError where it does not answer."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        response = await client.post(f"{url}/v1/chat/completions", json=_body())
        response.raise_for_status()
        answer = response.json()
    return Answer(QUESTION, str(answer["choices"][0]["message"]["content"]).strip())
