"""ports.ModelClient for servers that speak OpenAI's API: vLLM, SGLang, TGI, llama.cpp, Ollama, OpenAI, Azure.

What a server adds to OpenAI's answers, or leaves out of them, is made normal behind this client
(core/chunk_form.py); here are its bytes, its errors and, for Azure, its addresses.

A kept connection may have been closed by the server at the very moment a call was written to it. That call is
RESET, which is retried by the one owner of retries: a POST is never sent twice from here.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, urlencode

import aiohttp
import yarl

from schemas.failures import FailureKind
from services.adapters.model_backends.answer_bytes import Batch, SseAnswer, begun, is_sse, whole
from services.adapters.model_backends.http_calls import HttpCalls, read_trailer
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, translated
from services.core.fleet import Azure
from services.ports import BackendFault, ModelCall


class OpenAIBackend:
    """Calls OpenAI-compatible servers with at most `slots` tries at once, over as many kept connections."""

    def __init__(
        self,
        *,
        slots: int,
        api_key: str | None = None,
        azure: Azure | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        headers = {"accept": "text/event-stream, application/json"}
        if api_key and azure is not None:
            headers["api-key"] = api_key
        elif api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._calls = HttpCalls(slots=slots, headers=headers, now_s=now_s)
        self.connections = self._calls.connections
        self._azure = azure
        self._secrets = (api_key,) if api_key else ()
        self._urls: dict[tuple[str, str], yarl.URL] = {}

    async def aclose(self) -> None:
        await self._calls.aclose()

    async def answers(self, base_url: str) -> bool:
        """Whether the server says anything at all to `GET /v1/models` within two seconds."""
        status = await self._calls.status(base_url, self._path("/v1/models"))
        return status is not None and status < 500

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        """See ports.ModelClient. RESET: broken before any event; INTERRUPTED: after one."""
        response = await self._calls.opened(call, self._url(call.base_url, call.path))
        content = False
        try:
            if response.status != 200:
                raise await self._calls.refusal(response, self._secrets)
            async for batch in self._answer(response, call.streaming):
                content = True
                yield batch
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=True, content=content) from None
        finally:
            # Where the body was not read to its end this closes the connection, which stops the server.
            response.close()

    def _url(self, base_url: str, path: str) -> yarl.URL:
        url = self._urls.get((base_url, path))
        if url is None:
            url = self._urls[base_url, path] = yarl.URL(base_url + self._path(path))
        return url

    def _path(self, path: str) -> str:
        """Azure has the deployment in the path, and its version in the query; models are the resource's."""
        azure = self._azure
        if azure is None:
            return path
        resource = path.removeprefix("/v1")
        if resource != "/models":
            resource = f"/deployments/{quote(azure.deployment, safe='')}{resource}"
        return f"/openai{resource}?{urlencode({'api-version': azure.api_version})}"

    async def _answer(self, response: aiohttp.ClientResponse, streaming: bool) -> AsyncIterator[Batch]:
        pieces = aiter(response.content.iter_any())
        first = await begun(pieces) if streaming else b""
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
                await read_trailer(pieces)
                return
            data = await anext(pieces, b"")
        if batch := answer.finish():
            yield batch
        if answer.fault is not None:
            raise answer.fault
