"""Three nodes of Apache Kafka, of which one goes: leaders move, and the work goes on by itself (Q7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from infra.kafka.cluster import KafkaCluster
from tests.e2e.fault_fleet import ask, body, everything, text_of
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERY_S = 0.25
PATIENCE_S = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(kafka_possible: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scripted]:
    """One fleet for this module; each test leaves all nodes serving."""
    async with scripted_fleet(tmp_path_factory.mktemp("leaders"), "kafka", nodes=3) as running:
        yield running


def cluster_of(fleet: Scripted) -> KafkaCluster:
    assert isinstance(fleet.stage.broker, KafkaCluster)
    return fleet.stage.broker


async def moved(fleet: Scripted, away: int) -> None:
    """Returns once no partition that a chat goes through is led by the node that is away."""
    names = fleet.names

    async def look() -> bool | None:
        for topic in (names.lane("scripted", "interactive"), names.results, names.replies):
            leaders = set((await cluster_of(fleet).leaders(topic)).values())
            if leaders & {away, -1}:
                return None
        return True

    await until(look, "new leaders", patience_s=PATIENCE_S)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_q7_work_goes_on_when_leaders_move(fleet: Scripted, how: str) -> None:
    cluster, names = cluster_of(fleet), fleet.names
    chats: dict[str, asyncio.Task[httpx.Response]] = {}

    async def load() -> None:
        while True:
            marker = new_marker()
            fields = body(marker, {"text": marker, "delay_s": 0.2})
            chats[marker] = asyncio.create_task(ask(fleet.stage.url, fields))
            await asyncio.sleep(EVERY_S)

    under_way = new_marker()
    slow = asyncio.create_task(ask(fleet.stage.url, body(under_way, {"text": under_way, "delay_s": 5.0})))
    await fleet.at_work(under_way)
    loading = asyncio.create_task(load())
    try:
        await asyncio.sleep(2.0)
        led = Counter((await cluster.leaders(names.results)).values())
        victim = led.most_common(1)[0][0]
        node = cluster.nodes[victim]
        await (node.stop() if how == "stopped" else node.kill())
        try:
            await moved(fleet, victim)
            since = len(chats)

            async def answered() -> bool | None:
                """A chat that was sent after the move."""
                ends = [chat for chat in list(chats.values())[since:] if chat.done()]
                return any(chat.result().status_code == httpx.codes.OK for chat in ends) or None

            await until(answered, "an answer to a chat after the move", patience_s=PATIENCE_S)
        finally:
            await node.start()
            await cluster.until_serves()
    finally:
        loading.cancel()
    assert text_of(await slow) == under_way
    await _each_is_over(fleet, dict(zip(chats, await asyncio.gather(*chats.values()), strict=True)))


async def _each_is_over(fleet: Scripted, answers: dict[str, httpx.Response]) -> None:
    """Answered as the log says, or refused: not acknowledged in time. Whatever was accepted has its end.

    A lane record that is delivered again runs once more, and the first terminal record stands: a second is
    lawful, another first one than the caller's is not.
    """
    refused = {marker for marker, answer in answers.items() if answer.status_code == 503}
    print(f"{len(answers)} chats, {len(refused)} of them refused while there was no leader")
    for marker, answer in answers.items():
        if marker not in refused:
            assert text_of(answer) == marker
    assert len(refused) < len(answers) / 2

    async def over() -> dict[str, list[list[str]]] | None:
        """The kinds of each task's terminal records in log order, by marker."""
        evidence = await everything(fleet)
        ends: dict[str, list[list[str]]] = {m: [] for m in evidence.accepted.values() if m in answers}
        for task, marker in evidence.accepted.items():
            if marker in ends:
                ends[marker].append([kind for kind, _ in evidence.terminals.get(task, [])])
        return ends if all(kinds for tasks in ends.values() for kinds in tasks) else None

    ends = await until(over, "an end of every accepted task", patience_s=PATIENCE_S)
    answered = {marker: tasks for marker, tasks in ends.items() if marker not in refused}
    assert {marker: tasks for marker, tasks in answered.items() if len(tasks) != 1} == {}
    assert {marker: kinds for marker, (kinds,) in answered.items() if kinds[0] != "TaskSucceeded"} == {}
    assert set(answers) - refused <= set(ends)
