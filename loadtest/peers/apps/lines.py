"""What every peer's client has in common: markers in, markers out, a line each."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator

MODEL_URL = os.environ.get("PEER_MODEL_URL", "")
BROKER_URL = os.environ.get("PEER_BROKER_URL", "")
REDIS_URL = os.environ.get("PEER_REDIS_URL", "")


def call_model(marker: str) -> str:
    """One unstreamed chat with the model server; its text."""
    body = {"model": "m", "messages": [{"role": "user", "content": "work"}], "x_marker": marker}
    headers = {"content-type": "application/json", "x-request-id": marker}
    request = urllib.request.Request(  # noqa: S310 - the address comes from the comparison
        f"{MODEL_URL}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
        text: str = json.load(answer)["choices"][0]["message"]["content"]
        return text


def markers() -> Iterator[str]:
    for line in sys.stdin:
        yield line.strip()


def told(marker: str) -> None:
    sys.stdout.write(marker + "\n")
    sys.stdout.flush()


def send_each(send: Callable[[str], object]) -> None:
    """A send that fails is told by silence: the task was not accepted."""
    for marker in markers():
        try:
            send(marker)
        except Exception as fault:
            sys.stderr.write(f"{marker}: {type(fault).__name__}: {fault}\n")
        else:
            told(marker)
