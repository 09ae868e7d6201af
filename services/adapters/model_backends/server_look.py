"""ports.BackendLook over HTTP: a session of its own, so that a wedged page holds no connection of a try."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from services.adapters.model_backends.connections import KEEP_ALIVE_S
from services.adapters.model_backends.http_faults import LIBRARY_ERRORS, NO_CONNECTION
from services.core.backend_metrics import KNOWN, ServerLoad, load_of
from services.ports import MetricsAbsent, Presence

LOOK_S = 2.0  # the longest that anything here waits
_MOST_BYTES = 4 * 1024 * 1024
_LOADING = 503
_NOT_NOW = frozenset({408, 429, 500, 502, 503, 504})  # llama.cpp: 503 while it loads, 501 for ever
_NO_UPSTREAM = frozenset({502, 504})  # a proxy answers, the server behind it does not
_KNOWN_LINES = tuple(sorted(KNOWN))


class ServerLook:
    """Asks without a key: whoever refuses is there."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def presence(self, base_url: str) -> Presence:
        found = await self._page(f"{base_url}/health")
        return found or await self._page(f"{base_url}/v1/models") or "ready"

    async def load(self, base_url: str) -> ServerLoad | None:
        try:
            async with self._client().get(f"{base_url}/metrics", allow_redirects=False) as response:
                if response.status in _NOT_NOW:
                    return None
                if response.status != 200:
                    raise MetricsAbsent(f"HTTP {response.status}")
                text = await _text(response)
        except LIBRARY_ERRORS:
            return None
        found = _parsed(text)
        if found is None:
            raise MetricsAbsent("none that are known")
        return found

    async def _page(self, url: str) -> Presence | None:
        """None where the server answers, and there is no such page for us."""
        try:
            async with self._client().get(url, allow_redirects=False) as response:
                return _presence(response.status)
        except NO_CONNECTION:
            return "unreachable"
        except LIBRARY_ERRORS:
            return "silent"

    def _client(self) -> aiohttp.ClientSession:
        """Made at the first call: a connector belongs to the loop that runs."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=LOOK_S),
                trust_env=False,
            )
        return self._session


def _presence(status: int) -> Presence | None:
    if status == _LOADING:
        return "loading"
    if status in _NO_UPSTREAM:
        return "unreachable"
    return "ready" if 200 <= status < 300 else None


async def _text(response: aiohttp.ClientResponse) -> str:
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > _MOST_BYTES:
            raise MetricsAbsent(f"more than {_MOST_BYTES} bytes")
    return body.decode("utf-8", "replace")


def _parsed(text: str) -> ServerLoad | None:
    """Only the lines that matter are parsed: a server's histograms would hold the loop for tens of ms.

    Raises MetricsAbsent: it is no metrics text.
    """
    lines = [line for line in text.splitlines() if line.startswith(_KNOWN_LINES)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError as fault:
        raise MetricsAbsent("not the text format") from fault
    return load_of((sample.name, sample.value) for family in families for sample in family.samples)
