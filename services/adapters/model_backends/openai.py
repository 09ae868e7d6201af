"""ports.ModelClient for servers that speak OpenAI's API: vLLM, SGLang, TGI, llama.cpp, Ollama, OpenAI.

httpx's types and errors over aiohttp's connections, called at the transport: the client above it costs more
CPU than all the rest of a call. One try is one POST: nothing is repeated here, retries have one owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import httpx
from httpx_aiohttp import AiohttpTransport

from schemas.failures import FailureKind
from services.adapters.model_backends.answer_bytes import Batch, SseAnswer, is_sse, whole
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, translated
from services.core import backend_errors
from services.ports import BackendFault, ModelCall

# Below the 5 s after which uvicorn and llama.cpp close an idle connection: a request never meets a closing
# one.
KEEP_ALIVE_S = 4.0
_ERROR_BODY_S = 2.0
_ERROR_BODY_BYTES = 64 * 1024
_TRAILER_S = 0.05  # after [DONE] the end of the body follows at once, or the connection is given up


class OpenAIBackend:
    """Calls OpenAI-compatible servers with at most `slots` tries at once, over as many kept connections."""

    def __init__(
        self, *, slots: int, api_key: str | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._transport = AiohttpTransport(
            trust_env=False,
            limits=httpx.Limits(max_connections=slots + 4, keepalive_expiry=KEEP_ALIVE_S),
        )
        self._secrets = (api_key,) if api_key else ()
        self._now_s = now_s
        self._urls: dict[tuple[str, str], httpx.URL] = {}
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "user-agent": "chimera",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def answers(self, base_url: str) -> bool:
        """Whether the server says anything at all to `GET /v1/models` within two seconds."""
        request = self._request("GET", base_url, "/v1/models", {"connect": 2.0, "read": 2.0})
        try:
            response = await self._transport.handle_async_request(request)
            await response.aclose()
        except LIBRARY_ERRORS:
            return False
        return response.status_code < 500

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        """See ports.ModelClient. RESET: broken before any event; INTERRUPTED: after one."""
        response = await self._opened(call)
        content = False
        try:
            if response.status_code != 200:
                raise await self._refusal(response)
            async for batch in self._answer(response, call.streaming):
                content = True
                yield batch
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=True, content=content) from None
        finally:
            # Where the body was not read to its end this closes the connection, which stops the server.
            await response.aclose()

    def _request(
        self,
        method: str,
        base_url: str,
        path: str,
        timeouts: dict[str, float],
        body: bytes | None = None,
        **headers: str,
    ) -> httpx.Request:
        url = self._urls.get((base_url, path))
        if url is None:
            url = self._urls[base_url, path] = httpx.URL(base_url + path)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.Request(
            method, url, headers=self._headers | named, content=body, extensions={"timeout": timeouts}
        )

    async def _opened(self, call: ModelCall) -> httpx.Response:
        """The response with its head. Raises BackendFault."""
        timeouts = call.timeouts
        silence_s = max(timeouts.first_token_s, timeouts.idle_s) if call.streaming else timeouts.total_s
        request = self._request(
            "POST",
            call.base_url,
            call.path,
            {"connect": timeouts.connect_s, "read": silence_s},
            call.body,
            x_request_id=call.attempt,
        )
        request.headers.update(call.headers)
        try:
            async with asyncio.timeout(timeouts.first_token_s if call.streaming else timeouts.total_s):
                return await self._transport.handle_async_request(request)
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=False, content=False) from None

    async def _answer(self, response: httpx.Response, streaming: bool) -> AsyncIterator[Batch]:
        pieces = aiter(cast("AsyncIterator[bytes]", response.stream))
        first = await anext(pieces, b"")
        sse = is_sse(response.headers.get("content-type", ""), first) if streaming else False
        if sse is None:
            raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is neither a stream nor JSON")
        if not sse:
            yield [await whole(first, pieces, self._secrets)]
            return
        answer = SseAnswer(self._secrets)
        data = first
        while data:
            batch = answer.feed(data)
            if batch:
                yield batch
            if answer.fault is not None:
                raise answer.fault
            if answer.ended:
                await _trailer(pieces)
                return
            data = await anext(pieces, b"")
        if batch := answer.finish():
            yield batch
        if answer.fault is not None:
            raise answer.fault

    async def _refusal(self, response: httpx.Response) -> BackendFault:
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                async for data in cast("AsyncIterator[bytes]", response.stream):
                    body += data
                    if len(body) > _ERROR_BODY_BYTES:
                        break
        except LIBRARY_ERRORS:
            pass  # the status alone says enough
        failure = backend_errors.of_response(
            response.status_code, body, response.headers.get("retry-after"), self._now_s(), self._secrets
        )
        return BackendFault(
            failure.kind,
            failure.message,
            status=failure.status,
            code=failure.code,
            param=failure.param,
            retry_after_s=failure.retry_after_s,
        )


async def _trailer(pieces: AsyncIterator[bytes]) -> None:
    """Reads what follows [DONE], so that the connection can be used again."""
    try:
        async with asyncio.timeout(_TRAILER_S):
            async for _ in pieces:
                pass
    except LIBRARY_ERRORS:
        return
