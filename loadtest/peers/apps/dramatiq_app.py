"""Dramatiq on Redis with stored results: a no-op, for what a durable task costs."""

from __future__ import annotations

import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from loadtest.peers.apps.lines import BROKER_URL, told

broker = RedisBroker(url=BROKER_URL)
broker.add_middleware(Results(backend=RedisBackend(url=BROKER_URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def no_op(text: str) -> int:
    return len(text)


def main() -> None:
    """`client N` preloads N tasks; `outcomes` prints how many results there are."""
    if sys.argv[1] == "client":
        text = "word " * 100
        for _ in range(int(sys.argv[2])):
            no_op.send(text)
        told(sys.argv[2])
        return
    told(str(sum(1 for _ in broker.client.scan_iter("dramatiq-results:*", count=10_000))))


if __name__ == "__main__":
    main()
