"""A client that sees bytes: what came, in which HTTP chunks, and whether FIN or RST ended it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

HOST = "127.0.0.1"
PATIENCE_S = 20.0  # for what must happen; nothing waits that long when it works


@dataclass(frozen=True, slots=True)
class Wire:
    """Everything one connection received. `frames` are the HTTP chunks of a chunked body."""

    raw: bytes
    ended: Literal["fin", "rst"]

    @property
    def head(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.raw.split(b" ", 2)[1])

    @property
    def after_head(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def chunked(self) -> bool:
        return b"transfer-encoding: chunked" in self.head

    @property
    def complete(self) -> bool:
        """A chunked body with its last chunk, or a body as long as its head says."""
        if self.chunked:
            return self.raw.endswith(b"0\r\n\r\n")
        length = next(line for line in self.head.split(b"\r\n") if line.startswith(b"content-length"))
        return len(self.after_head) == int(length.split(b":")[1])

    @property
    def frames(self) -> list[bytes]:
        frames: list[bytes] = []
        rest = self.after_head
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if length:
                frames.append(rest[:length])
            rest = rest[length + 2 :]
        return frames

    @property
    def body(self) -> bytes:
        return b"".join(self.frames) if self.chunked else self.after_head

    @property
    def data(self) -> list[str]:
        """The data of each event, [DONE] included; comments are no events."""
        lines = self.body.decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def chunks(self) -> list[Any]:
        return [json.loads(each) for each in self.data if each != "[DONE]"]

    @property
    def contents(self) -> list[str]:
        """The text deltas of choice 0, without those that are empty or absent."""
        deltas = [choice["delta"] for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [delta["content"] for delta in deltas if delta.get("content")]


def request_bytes(path: str, fields: object, attempt: str | None = None, keep_alive: bool = False) -> bytes:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {HOST}", f"content-length: {len(body)}"]
    if attempt is not None:
        lines.append(f"x-request-id: {attempt}")
    if not keep_alive:
        lines.append("connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The body of a chat with a script."""
    body = {"model": "any", "messages": [{"role": "user", "content": "two words"}], **fields}
    return body if script is None else {**body, "x_script": script}


async def post(
    port: int, fields: object, path: str = "/v1/chat/completions", attempt: str | None = None
) -> Wire:
    """Sends one request and reads until the server ends the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request_bytes(path, fields, attempt))
        return await asyncio.wait_for(_to_the_end(reader), PATIENCE_S)
    finally:
        writer.close()


async def _to_the_end(reader: asyncio.StreamReader) -> Wire:
    raw = b""
    while True:
        try:
            data = await reader.read(65536)
        except ConnectionResetError:
            return Wire(raw, "rst")
        if not data:
            return Wire(raw, "fin")
        raw += data
