"""One POST to a server and its answer's head, for backends behind HTTP: bounded, with faults by kind.

A try is one POST: nothing is repeated here, retries have one owner. An answer that is not read to its end
must be closed, which closes its connection, which stops the server.

aiohttp's client: a streamed call costs it four fifths of the CPU of httpx over the same connections, and a
tenth of httpx's own (measured).
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
import yarl

from schemas.messages import Failure
from services.adapters.model_backends.connections import BackendConnections
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, translated
from services.core import backend_errors
from services.core.backend_errors import Waits
from services.ports import BackendFault, ModelCall

_ERROR_BODY_S = 2.0
_ERROR_BODY_BYTES = 64 * 1024
_WRITTEN_AT_ONCE = 1024 * 1024
_PROBE_S = 2.0
_TRAILER_S = 0.05  # after a stream's last event its body ends at once, or the connection is given up


class HttpCalls:
    """`headers` go with every request; `now_s` is Unix time, for Retry-After dates."""

    def __init__(
        self, *, slots: int, headers: Mapping[str, str], now_s: Callable[[], float] = time.time
    ) -> None:
        self.connections = BackendConnections(slots)
        self.now_s = now_s
        self._headers = {"accept-encoding": "identity", "user-agent": "chimera", **headers}

    async def aclose(self) -> None:
        await self.connections.aclose()

    async def status(self, base_url: str, path: str = "") -> int | None:
        """What the server says to a GET within two seconds; None: nothing."""
        try:
            async with self.connections.session(base_url).get(
                yarl.URL(base_url + path),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_PROBE_S),
                allow_redirects=False,
            ) as response:
                return response.status
        except LIBRARY_ERRORS:
            return None

    async def opened(self, call: ModelCall, url: yarl.URL | None = None) -> aiohttp.ClientResponse:
        """The response with its head. `url`: where it is not the call's. Raises BackendFault."""
        timeouts = call.timeouts
        head_s = timeouts.first_token_s if call.streaming else timeouts.total_s
        silence_s = max(timeouts.first_token_s, timeouts.idle_s) if call.streaming else timeouts.total_s
        try:
            async with asyncio.timeout(head_s):
                return await self.connections.session(call.base_url).post(
                    url or yarl.URL(call.base_url + call.path),
                    # Above a megabyte aiohttp wants a file: it is written in pieces, and the loop breathes.
                    data=call.body if len(call.body) <= _WRITTEN_AT_ONCE else io.BytesIO(call.body),
                    headers={
                        "content-type": "application/json",
                        **self._headers,
                        "x-request-id": call.attempt,
                        **call.headers,
                    },
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=timeouts.connect_s, sock_read=silence_s
                    ),
                    allow_redirects=False,
                )
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=False, content=False) from None

    async def refusal(self, response: aiohttp.ClientResponse, secrets: tuple[str, ...]) -> BackendFault:
        """What a response outside 2xx means; of `secrets` its message has none."""
        body, waits = await error_body(response), waits_of(response)
        return fault_from(backend_errors.of_response(response.status, body, waits, self.now_s(), secrets))


async def read_trailer(pieces: AsyncIterator[bytes]) -> None:
    """Reads what follows a stream's last event, so that the connection can be used again."""
    try:
        async with asyncio.timeout(_TRAILER_S):
            async for _ in pieces:
                pass
    except LIBRARY_ERRORS:
        return


async def error_body(response: aiohttp.ClientResponse) -> bytes:
    """What a response outside 2xx says, or its beginning: the status alone says enough."""
    body = b""
    try:
        async with asyncio.timeout(_ERROR_BODY_S):
            async for data in response.content.iter_any():
                body += data
                if len(body) > _ERROR_BODY_BYTES:
                    break
    except LIBRARY_ERRORS:
        pass
    return body


def waits_of(response: aiohttp.ClientResponse) -> Waits:
    headers = response.headers
    return Waits(headers.get("retry-after"), headers.get("retry-after-ms"))


def fault_from(failure: Failure) -> BackendFault:
    return BackendFault(
        failure.kind,
        failure.message,
        status=failure.status,
        code=failure.code,
        param=failure.param,
        retry_after_s=failure.retry_after_s,
    )
