"""ports.ModelClient for servers that speak Anthropic's Messages API: its events leave as OpenAI's chunks.

The body of a call is a Messages request already (core/anthropic_request.py).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from schemas.failures import FailureKind
from services.adapters.model_backends.answer_bytes import Batch, SseAnswer, begun, is_sse, whole
from services.adapters.model_backends.connections import BackendConnections
from services.adapters.model_backends.http_calls import HttpCalls, read_trailer
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, translated
from services.core.anthropic_events import MalformedEventError, MessagesTranslator, whole_answer
from services.ports import BackendFault, ModelCall

API_VERSION = "2023-06-01"


class AnthropicBackend:
    """Calls Messages servers with at most `slots` tries at once, over as many kept connections."""

    def __init__(
        self, *, slots: int, api_key: str | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        headers = {"anthropic-version": API_VERSION, "accept": "text/event-stream, application/json"}
        if api_key:
            headers["x-api-key"] = api_key
        self._secrets = (api_key,) if api_key else ()
        self._calls = HttpCalls(slots=slots, headers=headers, now_s=now_s)

    @property
    def connections(self) -> BackendConnections:
        return self._calls.connections

    async def aclose(self) -> None:
        await self._calls.aclose()

    async def answers(self, base_url: str) -> bool:
        """Whether the server says anything but a failure to `GET /v1/models` within two seconds."""
        status = await self._calls.status(base_url, "/v1/models")
        return status is not None and status < 500

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        """See ports.ModelClient. RESET: broken before any chunk; INTERRUPTED: after one."""
        response = await self._calls.opened(call)
        content = False
        try:
            if response.status != 200:
                raise await self._calls.refusal(response, self._secrets)
            async for batch in self._answer(response, call.streaming):
                content = True
                yield batch
        except MalformedEventError:
            raise BackendFault(
                FailureKind.BAD_ANSWER, "the backend's answer is not of the Messages API"
            ) from None
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=True, content=content) from None
        finally:
            response.close()

    async def _answer(self, response: aiohttp.ClientResponse, streaming: bool) -> AsyncIterator[Batch]:
        pieces = aiter(response.content.iter_any())
        first = await begun(pieces) if streaming else b""
        sse = is_sse(response.headers.get("content-type", ""), first) if streaming else False
        if sse is None:
            raise BackendFault(FailureKind.BAD_ANSWER, "the backend's answer is neither a stream nor JSON")
        if not sse:
            yield [whole_answer(await whole(first, pieces, self._secrets))]
            return
        answer, translator = SseAnswer(self._secrets), MessagesTranslator()
        data = first
        while data:
            if batch := translator.chunks(answer.feed(data)):
                yield batch
            if translator.ended:
                await read_trailer(pieces)
                return
            if answer.fault is not None:
                raise answer.fault
            data = await anext(pieces, b"")
        if batch := translator.chunks(answer.finish()):
            yield batch
        if answer.fault is not None and not translator.ended:
            raise answer.fault
