"""Celery on Redis, as its docs say for work that must not be lost.

That is acks_late, reject_on_worker_lost and a prefetch of 1. The visibility time-out brings the work of
a killed worker back; its default is an hour, here it is seconds.
"""

from __future__ import annotations

import os
import sys

from celery import Celery
from celery.result import AsyncResult

from loadtest.peers.apps.lines import BROKER_URL, call_model, markers, send_each, told

app = Celery("peer", broker=BROKER_URL, backend=BROKER_URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": int(os.environ.get("PEER_VISIBILITY_S", "3600"))},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    result_expires=3600,
)


@app.task(name="work", acks_late=True, reject_on_worker_lost=True)
def work(marker: str) -> str:
    return call_model(marker)


def main() -> None:
    if sys.argv[1] == "client":
        send_each(lambda marker: work.apply_async((marker,), task_id=marker))
        return
    for marker in markers():
        if AsyncResult(marker, app=app).successful():
            told(marker)


if __name__ == "__main__":
    main()
