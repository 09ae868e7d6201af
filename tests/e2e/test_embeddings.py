"""Embeddings by the unmodified `openai` package, through separate processes, and what reaches the backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import openai
import pytest
import pytest_asyncio

from loadtest.model_server import words
from loadtest.model_server.attempts import AttemptRecord
from loadtest.model_server.process import ModelServerProcess
from tests.e2e.staged import Scripted, new_marker, scripted_fleet, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DIMENSIONS = 16
EMBED_POOL = """
  - name: vectors
    model: embedder
    base_url: {base_url}
    capabilities: [embed]
    slots: 4
    batching: {{max_items: 32, max_wait_s: 0.02}}
"""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The fleet, the server behind its pool `vectors`, and a client."""

    fleet: Scripted
    server: ModelServerProcess
    client: openai.AsyncOpenAI

    def calls(self, marker: str | None = None) -> list[AttemptRecord]:
        return [record for record in self.server.log() if marker in (None, record.marker)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedding(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Embedding]:
    async with ModelServerProcess(model="embedder", embedding_dimensions=DIMENSIONS) as server:
        pools = EMBED_POOL.format(base_url=server.base_url)
        async with scripted_fleet(tmp_path_factory.mktemp("embed"), "local", more_pools=pools) as fleet:
            http = openai.DefaultAsyncHttpxClient(trust_env=False)
            async with openai.AsyncOpenAI(
                base_url=fleet.base_url, api_key="unused", http_client=http, max_retries=0
            ) as client:
                yield Embedding(fleet, server, client)


def vector(text: str, dimensions: int = DIMENSIONS) -> object:
    """What the model server's vector of a text is equal to, after its way through float32."""
    return pytest.approx(words.vector(text, dimensions, 0), abs=1e-6)


@pytest.mark.parametrize("model", ["vectors", "embedder", "auto"])
async def test_the_openai_client_gets_its_vectors(embedding: Embedding, model: str) -> None:
    client = embedding.client
    one = await client.embeddings.create(model=model, input="two words")
    assert (one.object, one.model, len(one.data)) == ("list", "embedder", 1)
    assert one.data[0].embedding == vector("two words")  # asked for as base64, which the client decodes
    assert (one.usage.prompt_tokens, one.usage.total_tokens) == (2, 2)
    many = await client.embeddings.create(
        model=model, input=["a", "b", "c"], encoding_format="float", dimensions=4, user="u"
    )
    assert [row.index for row in many.data] == [0, 1, 2]
    assert [row.embedding for row in many.data] == [vector(text, 4) for text in "abc"]
    tokens = await client.embeddings.create(model=model, input=[[1, 2], [3]])
    assert [row.embedding for row in tokens.data] == [vector("1 2"), vector("3")]


async def test_fifty_at_once_make_a_few_calls_and_all_vectors_are_right(embedding: Embedding) -> None:
    before = len(embedding.calls())
    texts = [f"text number {number}" for number in range(50)]
    answers = await asyncio.gather(
        *(embedding.client.embeddings.create(model="vectors", input=text) for text in texts)
    )
    for text, answer in zip(texts, answers, strict=True):
        assert answer.data[0].embedding == vector(text)
    made = embedding.calls()[before:]
    print(f"50 requests, {len(made)} calls")
    assert len(made) <= 25
    attempts = [attempt for record in made for attempt in (record.attempt, *record.others)]
    assert len(set(attempts)) == len(attempts) == 50
    assert sum(answer.usage.prompt_tokens for answer in answers) == sum(record.tokens_in for record in made)


async def test_as_many_inputs_as_openai_takes_go_in_one_call(embedding: Embedding) -> None:
    texts = [str(number) for number in range(2048)]
    answer = await embedding.client.embeddings.create(model="vectors", input=texts)
    assert len(answer.data) == 2048
    assert answer.data[2047].embedding == vector("2047")


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        ("vectors", {"input": ""}, "input"),
        ("vectors", {"input": []}, "input"),
        ("vectors", {"input": ["x"] * 2049}, "input"),
        ("vectors", {"input": ["x", ""]}, "input[1]"),
        ("vectors", {"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ("vectors", {"input": "x", "dimensions": 0}, "dimensions"),
        ("scripted", {"input": "x"}, "model"),
    ],
)
async def test_what_is_wrong_is_a_400_that_names_it(
    embedding: Embedding, model: str, body: dict[str, object], param: str
) -> None:
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        url = f"{embedding.fleet.base_url}/embeddings"
        answer = await client.post(url, json={"model": model, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_key_runs_it_once(embedding: Embedding) -> None:
    marker = new_marker()
    for _ in range(2):
        answer = await embedding.client.embeddings.create(
            model="vectors",
            input="once",
            extra_body={"x_marker": marker},
            extra_headers={"Idempotency-Key": marker},
        )
        assert answer.data[0].embedding == vector("once")
    assert len(embedding.calls(marker)) == 1


async def test_the_deadline_is_kept_and_a_hang_up_stops_the_call(embedding: Embedding) -> None:
    marker = new_marker()
    with pytest.raises(openai.APIStatusError) as caught:
        await embedding.client.embeddings.create(
            model="vectors",
            input="late",
            extra_body={"x_marker": marker, "x_script": {"delay_s": 30}},
            extra_headers={"x-chimera-deadline-ms": "700"},
        )
    assert caught.value.status_code == 504

    gone = new_marker()
    asking = asyncio.create_task(
        embedding.client.embeddings.create(
            model="vectors", input="gone", extra_body={"x_marker": gone, "x_script": {"delay_s": 30}}
        )
    )

    async def at_work() -> bool | None:
        running = await embedding.server.running_attempts()
        return any(record.marker == gone for record in running) or None

    await until(at_work, "the call at the server")
    asking.cancel()

    async def ended() -> list[AttemptRecord] | None:
        return (embedding.calls(marker) and embedding.calls(gone)) or None

    assert [record.outcome for record in await until(ended, "the ends of both calls")] == ["disconnected"]
    assert [record.outcome for record in embedding.calls(marker)] == ["disconnected"]


@pytest.mark.parametrize(
    "odd",
    [{"crlf": True, "comments": True, "no_done": True}, {"double_finish": True}, {"json_not_sse": True}],
    ids=str,
)
async def test_a_stream_ends_with_done_once_whatever_the_backend_did(
    embedding: Embedding, odd: dict[str, object]
) -> None:
    body = {
        "model": "scripted",
        "stream": True,
        "messages": [{"role": "user", "content": "x"}],
        "x_script": {"text": "one two", **odd},
    }
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
        answer = await client.post(f"{embedding.fleet.base_url}/chat/completions", json=body)
    events = [event for event in answer.text.split("\n\n") if event and not event.startswith(":")]
    assert [at for at, event in enumerate(events) if event == "data: [DONE]"] == [len(events) - 1]
    assert answer.text.count('"finish_reason":"stop"') == 1
    assert "usage" not in answer.text
