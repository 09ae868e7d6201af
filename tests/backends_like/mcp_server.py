"""`python -m tests.backends_like.mcp_server [port]`: a tool server by the official SDK's server side.

On its pipes, or on a port over HTTP. MCP_MARKS names a folder where it notes what happened to it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult

server = MCPServer("tools")
_ONE_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000000"
    "000200015e2a1c3d0000000049454e44ae426082"
)


def mark(name: str) -> None:
    folder = os.environ.get("MCP_MARKS")
    if folder:
        with (Path(folder) / name).open("a") as file:
            file.write("x")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    mark("add")
    return a + b


@server.tool()
def person(name: str) -> dict[str, Any]:
    """Structured content."""
    return {"name": name, "tags": ["ü", 1, None]}


@server.tool(structured_output=False)
def say(text: str) -> str:
    """Text."""
    return text


@server.tool(structured_output=False)
def picture() -> Image:
    """A block that is no text."""
    return Image(data=_ONE_PIXEL, format="png")


@server.tool()
def fail(words: str) -> str:
    """Fails, and says why."""
    raise ToolError(words)


@server.tool()
async def wait(name: str, seconds: float) -> str:
    """Takes its time, unless it is cancelled."""
    mark(f"{name}.begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        mark(f"{name}.cancelled")
        raise
    return name


@server.tool()
def crash() -> str:
    """Dies under the call."""
    os._exit(3)


@server.tool()
def leave() -> str:
    """Answers, and dies when nobody calls."""
    threading.Timer(0.3, os._exit, [3]).start()
    return "soon"


@server.tool(structured_output=False)
def environment() -> list[str]:
    """The names of all variables that it has."""
    print("my key is", os.environ.get("TOOL_KEY"), file=sys.stderr, flush=True)
    return sorted(os.environ)


@server.tool()
def leak() -> str:
    """Quotes its key in an error."""
    raise ToolError(f"refused with key {os.environ.get('TOOL_KEY')}")


@server.tool(structured_output=False)
def deep() -> CallToolResult:
    """More levels than an answer may have."""
    value: Any = None
    for _ in range(200):
        value = [value]
    return CallToolResult(content=[], structured_content={"deep": value})


if __name__ == "__main__":
    mark("started")
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
