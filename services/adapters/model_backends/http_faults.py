"""What the HTTP client's errors mean, said once, by kind."""

from __future__ import annotations

import asyncio

import aiohttp

from schemas.failures import FailureKind
from services.ports import BackendFault

LIBRARY_ERRORS = (
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)

_WORDS = {
    FailureKind.UNREACHABLE: "the backend cannot be reached",
    FailureKind.RESET: "the backend broke the connection before it answered",
    FailureKind.INTERRUPTED: "the backend broke off its answer",
    FailureKind.FIRST_TOKEN_TIMEOUT: "the backend did not begin to answer in time",
    FailureKind.IDLE_TIMEOUT: "the backend fell silent",
    FailureKind.BAD_ANSWER: "the backend's answer is not HTTP",
}
NO_CONNECTION = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientProxyConnectionError,
    aiohttp.InvalidURL,
)
_NO_HTTP = (aiohttp.ClientResponseError, aiohttp.http_exceptions.HttpProcessingError)
_SILENCE = (aiohttp.SocketTimeoutError, asyncio.TimeoutError)


def translated(error: BaseException, *, answered: bool, content: bool) -> BackendFault:
    """The fault that a library error means. `answered`: a head came; `content`: events came."""
    kind = _kind(error, answered=answered, content=content)
    return BackendFault(kind, _WORDS[kind])


def _kind(error: BaseException, *, answered: bool, content: bool) -> FailureKind:
    if isinstance(error, NO_CONNECTION):
        return FailureKind.UNREACHABLE
    if isinstance(error, _SILENCE):
        return FailureKind.IDLE_TIMEOUT if answered else FailureKind.FIRST_TOKEN_TIMEOUT
    if isinstance(error, _NO_HTTP):
        return FailureKind.BAD_ANSWER
    if content:
        return FailureKind.INTERRUPTED
    return FailureKind.RESET
