"""Which of a pool's interchangeable backends a try goes to: the one with the fewest in flight."""

from __future__ import annotations

from services.ports import RandomUnit


class Backends:
    """`uniform` breaks ties. A backend that just failed the same task is avoided where there is another."""

    def __init__(self, base_urls: tuple[str, ...], uniform: RandomUnit) -> None:
        self._in_flight = dict.fromkeys(base_urls or ("",), 0)
        self._uniform = uniform

    def take(self, failed_at: str | None) -> str:
        """The base URL to call; give it back."""
        base_url = self._least_loaded(failed_at)
        self._in_flight[base_url] += 1
        return base_url

    def give_back(self, base_url: str) -> None:
        self._in_flight[base_url] -= 1

    def _least_loaded(self, failed_at: str | None) -> str:
        loads = self._in_flight
        if len(loads) == 1:
            return next(iter(loads))
        others = [url for url in loads if url != failed_at]
        least = min(loads[url] for url in others)
        best = [url for url in others if loads[url] == least]
        return best[int(self._uniform() * len(best))]
