"""Dramatiq on Redis with stored results: a no-op, for what a durable task costs."""

from __future__ import annotations

import sys
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from loadtest.peers.apps.lines import BROKER_URL, told

_LOOK_EVERY_S = 0.25
broker = RedisBroker(url=BROKER_URL)
broker.add_middleware(Results(backend=RedisBackend(url=BROKER_URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def no_op(text: str) -> int:
    return len(text)


def main() -> None:
    """`client N` preloads N tasks; `outcomes N` returns once there are so many results."""
    if sys.argv[1] == "client":
        text = "word " * 100
        for _ in range(int(sys.argv[2])):
            no_op.send(text)
    else:
        while broker.client.dbsize() < int(sys.argv[2]) or _results() < int(sys.argv[2]):
            time.sleep(_LOOK_EVERY_S)
    told(sys.argv[2])


def _results() -> int:
    """A result's key is a bare hash, everything else of Dramatiq's begins with its name."""
    return sum(not key.startswith(b"dramatiq") for key in broker.client.scan_iter(count=10_000))


if __name__ == "__main__":
    main()
