"""What tests ask the fleet with the `openai` package, and the count of what that package sends."""

from __future__ import annotations

from typing import Any

import httpx
from openai.types.chat import ChatCompletionMessageParam

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How many legs has a chimera?"}]
TEXT = "Four legs, 🐉 one tail, and naïve eyes."


class Sent:
    """Counts what a client puts on the wire, so that its own retries are seen."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    async def on_request(self, request: httpx.Request) -> None:
        self.requests.append(request)


def scripted(script: dict[str, Any] | None = None, marker: str | None = None) -> dict[str, Any]:
    """Fields that the model server follows and the fleet passes on."""
    fields: dict[str, Any] = {"x_script": {"text": TEXT} if script is None else script}
    return fields if marker is None else fields | {"x_marker": marker}
