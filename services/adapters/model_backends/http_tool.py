"""ports.ModelClient for a function or a service behind one URL: any JSON or text is its answer.

The service hears `Idempotency-Key` (the task, the same in every try) and `x-request-id` (this try).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from schemas.failures import FailureKind
from schemas.messages import Failure
from services.adapters.model_backends.answer_bytes import Batch
from services.adapters.model_backends.http_calls import HttpCalls, error_body, fault_from, waits_of
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, translated
from services.core import tool_task
from services.core.tool_task import MOST_RESULT_BYTES
from services.ports import BackendFault, ModelCall

_NO_UPSTREAM = frozenset({502, 503, 504})  # a proxy answers, the service behind it does not


class HttpToolBackend:
    """Calls services with at most `slots` tries at once; the key, if any, is a bearer token."""

    def __init__(
        self, *, slots: int, api_key: str | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        headers = {"accept": "application/json, text/*;q=0.5"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._secrets = (api_key,) if api_key else ()
        self._calls = HttpCalls(slots=slots, headers=headers, now_s=now_s)

    async def aclose(self) -> None:
        await self._calls.aclose()

    async def answers(self, base_url: str) -> bool:
        """Whether the service says anything within two seconds, be it that a GET is not for it."""
        status = await self._calls.status(base_url)
        return status is not None and status not in _NO_UPSTREAM

    async def events(self, call: ModelCall) -> AsyncIterator[Batch]:
        """See ports.ModelClient: one event, `{"result": ...}`."""
        response = await self._calls.opened(call)
        try:
            if not 200 <= response.status < 300:
                raise await self._refusal(response)
            body = await _read(response)
        except LIBRARY_ERRORS as error:
            raise translated(error, answered=True, content=False) from None
        finally:
            response.close()
        answer = tool_task.answer_of_body(response.headers.get("content-type", ""), body)
        if isinstance(answer, Failure):
            raise fault_from(answer)
        yield [answer]

    async def _refusal(self, response: aiohttp.ClientResponse) -> BackendFault:
        body = await error_body(response)
        failure = tool_task.of_response(
            response.status, body, waits_of(response), self._calls.now_s(), self._secrets
        )
        return fault_from(failure)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for data in response.content.iter_any():
        parts.append(data)
        size += len(data)
        if size > MOST_RESULT_BYTES:
            raise BackendFault(
                FailureKind.BAD_ANSWER, f"the tool's answer is larger than {MOST_RESULT_BYTES} bytes"
            )
    return b"".join(parts)
