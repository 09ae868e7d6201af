"""ports.ModelClient for tools behind the Model Context Protocol, by its official SDK.

A call that is cancelled, or runs out of time, is cancelled at the server too. A server that goes away under
calls makes them RESET; it is started again, and who comes meanwhile waits for it, at most first_token_s.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import anyio
import orjson
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, RequestParamsMeta
from pydantic import ValidationError

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.adapters.model_backends.answer_bytes import Batch
from services.adapters.model_backends.http_calls import fault_from
from services.adapters.model_backends.mcp_link import Connected, McpLink
from services.adapters.model_backends.mcp_transport import Open, over_http, over_pipes
from services.core import mcp_results, tool_task
from services.core.fleet import Mcp, Timeouts, env_name
from services.ports import BackendFault, ModelCall, RandomUnit

_PROBE_S = 2.0
_LOST = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
_SESSION_OVER = "Session terminated"  # the SDK's word for a server over HTTP that forgot us


class McpBackend:
    """`environment` has what the fleet file names as `env:NAME`; none of those values is ever shown."""

    def __init__(
        self,
        mcp: Mcp | None,
        environment: Mapping[str, str],
        *,
        timeouts: Timeouts,
        uniform: RandomUnit,
        api_key: str | None = None,
    ) -> None:
        # Its loggers quote what the server says, at any length; what matters of it we say ourselves.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        self._mcp = mcp or Mcp()
        named = {name: env_name(value) for name, value in self._mcp.env.items()}
        self._env = {
            name: self._mcp.env[name] if source is None else environment[source]
            for name, source in named.items()
        }
        hidden = [self._env[name] for name, source in named.items() if source is not None]
        self._api_key = api_key
        self._secrets = tuple(filter(None, [api_key, *hidden]))
        self._timeouts = timeouts
        self._uniform = uniform
        self._links: dict[str, McpLink] = {}

    async def aclose(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.aclose()

    async def answers(self, base_url: str) -> bool:
        """Whether the server has initialised; begins that, and waits two seconds for it."""
        try:
            await self._link(base_url).connected(_PROBE_S)
        except BackendFault:
            return False
        return True

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        """See ports.ModelClient: one event, `{"result": ...}`."""
        asked = orjson.loads(call.body)
        live = await self._link(call.base_url).connected(call.timeouts.first_token_s)
        try:
            await self._known(live, asked["name"])
            result = await self._called(live, asked, call)
        except MCPError as error:
            raise self._fault(error, live) from None
        except _LOST:
            live.lost()
            raise fault_from(mcp_results.of_error(mcp_results.CONNECTION_CLOSED, "")) from None
        except (RuntimeError, ValidationError):  # so the SDK says that a result breaks its own schema
            raise BackendFault(
                FailureKind.BAD_ANSWER, "the tool's answer is not what its server says it would be"
            ) from None
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        answer = mcp_results.of_result(blocks, result.structured_content, result.is_error, self._secrets)
        if isinstance(answer, Failure):
            raise fault_from(answer)
        yield [answer]

    async def _called(self, live: Connected, asked: Mapping[str, Any], call: ModelCall) -> CallToolResult:
        told = {"attempt": call.attempt, **call.headers}
        return await live.client.call_tool(
            asked["name"],
            asked["arguments"],
            read_timeout_seconds=call.timeouts.total_s,
            meta=cast("RequestParamsMeta", told),
        )

    async def _known(self, live: Connected, name: str) -> None:
        """Raises BackendFault where the server has no such tool, also after another look."""
        if name not in live.tools:
            await live.list_again()
        if name not in live.tools:
            raise fault_from(tool_task.unknown_tool(name, list(live.tools)))

    def _fault(self, error: MCPError, live: Connected) -> BackendFault:
        code = error.code
        if error.message == _SESSION_OVER:
            code = mcp_results.CONNECTION_CLOSED
        if code == mcp_results.CONNECTION_CLOSED:
            live.lost()
        return fault_from(mcp_results.of_error(code, error.message, self._secrets))

    def _link(self, base_url: str) -> McpLink:
        link = self._links.get(base_url)
        if link is None:
            start_s = self._timeouts.first_token_s
            link = self._links[base_url] = McpLink(self._where(base_url), start_s, self._uniform)
        return link

    def _where(self, base_url: str) -> Open:
        if self._mcp.command:
            return over_pipes(self._mcp.command, self._env)
        return over_http(base_url, self._api_key, self._timeouts.connect_s)
