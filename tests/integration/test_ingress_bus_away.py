"""The ingress while the broker is away: it says so, holds little, and closes what it left behind later."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import httpx

from schemas.topics import TopicNames
from services.ingress.call import Call
from services.ingress.closes import Background, Closes, Unwanted
from tests.chat_bodies import answer_of, ask
from tests.fakes.bus import FakePublisher
from tests.ingress_bench import FLEET, LONGEST_S, Bench, eventually, ingress_bench, new_bus

CHATS = "/v1/chat/completions"


def calls_in_memory() -> int:
    gc.collect()
    return sum(type(thing) is Call for thing in gc.get_objects())  # isinstance asks proxies, which may import


def closed_tasks(bench: Bench) -> list[str]:
    """The keys of what was closed, in the order of the log."""
    kept = [r for r in bench.bus.records(bench.names.results) if ("type", b"TaskClosed") in r.headers]
    return [(record.key or b"").decode() for record in kept]


async def refused(client: httpx.AsyncClient, **more: str) -> None:
    """A call that no broker acknowledges before its deadline of 2 s: long enough to be sent at all."""
    headers = {"x-chimera-deadline-ms": "2000", **more}
    response = await client.post(CHATS, json=ask(), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_unavailable")


async def test_a_close_that_waits_for_the_broker_does_not_keep_its_request(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.freeze()
        # at once: after 5 s without the broker nothing is sent at all
        keyed = refused(client, **{"idempotency-key": "order-1"})
        await asyncio.gather(*(refused(client) for _ in range(5)), keyed)
        assert calls_in_memory() == 0
        bench.bus.thaw()
        await eventually(lambda: len(closed_tasks(bench)) == 6)


async def test_the_closes_that_wait_are_bounded_in_number_and_few_are_under_way() -> None:
    bus, background, names = new_bus(), Background(), TopicNames(FLEET.prefix)
    publisher = FakePublisher(bus)
    await publisher.start()
    closes = Closes(publisher, names, "one", 0.01, background, most_waiting=100)
    deadline_ms = int((time.time() + LONGEST_S) * 1000)
    bus.freeze()
    before = len(asyncio.all_tasks())
    for number in range(150):
        closes.soon(Unwanted(str(number), "r", 0, deadline_ms), "cancelled")
    assert len(closes) == 100
    assert len(asyncio.all_tasks()) - before < 50
    bus.thaw()
    await background.finish(LONGEST_S)
    await publisher.stop()
    for topic in (names.results, names.control):
        assert {record.key for record in bus.records(topic)} == {str(n).encode() for n in range(100)}


async def test_nothing_is_sent_while_there_is_no_broker_and_nothing_is_left_to_close(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.freeze(for_s=60)
        for headers in ({}, {"idempotency-key": "order-1"}):
            response = await client.post(CHATS, json=ask(), headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_unavailable")
            assert int(response.headers["retry-after"]) >= 1
        bench.bus.thaw()
        call = asyncio.create_task(client.post(CHATS, json=ask(), headers={"idempotency-key": "order-1"}))
        task = await bench.next_task()  # the first that is sent at all
        await bench.succeed(task, answer_of("back again"))
        assert (await call).status_code == 200
        assert closed_tasks(bench) == []


async def test_readiness_follows_the_broker_there_and_back(tmp_path: Path) -> None:
    """Polls of a broker that is gone return as those of an idle one do: empty."""
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.freeze(for_s=60)
        gone = await client.get("/readyz")
        assert gone.status_code == 503
        assert (gone.json()["readers"], gone.json()["publisher"]) == ("down", "down")
        bench.bus.thaw()
        back = await client.get("/readyz")
        assert back.status_code == 200
        assert (back.json()["readers"], back.json()["publisher"]) == ("up", "up")


async def test_a_broker_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    async with ingress_bench(tmp_path) as bench, bench.http() as client:
        bench.bus.freeze()
        call = asyncio.create_task(client.post(CHATS, json=ask()))
        await eventually(lambda: bench.ingress.inbox._listeners)
        assert (await client.get("/readyz")).status_code == 200
        bench.bus.thaw()
        await bench.succeed(await bench.next_task(), answer_of("after the pause"))
        assert (await call).status_code == 200
