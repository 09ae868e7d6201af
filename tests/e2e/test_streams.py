"""A model server breaks its streams in every way; what the `openai` package hears of it through the fleet."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.asked import QUESTION, TEXT, scripted
from tests.e2e.staged import Scripted, new_marker

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMOJI = "naïve 🐉🦁🐐 → 東京, e\u0301, 👩‍👩‍👧"


async def streamed(client: openai.AsyncOpenAI, marker: str, script: dict[str, Any]) -> str:
    """The joined text of a stream. Raises openai.APIError at an error event."""
    stream = await client.chat.completions.create(
        model="scripted",
        messages=QUESTION,
        stream=True,
        extra_body=scripted(script, marker),
        extra_headers={"x-request-id": marker},
    )
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(parts)


async def whole(client: openai.AsyncOpenAI, marker: str, script: dict[str, Any]) -> str | None:
    answer = await client.chat.completions.create(
        model="scripted",
        messages=QUESTION,
        extra_body=scripted(script, marker),
        extra_headers={"x-request-id": marker},
    )
    return answer.choices[0].message.content


@pytest.mark.parametrize(
    "broken",
    [{"reset_before": True}, {"reset_after_chunks": 0}, {"end_after_chunks": 0}, {"status": 503}],
    ids=["refused", "reset", "ended", "unavailable"],
)
async def test_s1_a_break_before_content_is_not_seen(
    fleet: Scripted, client: openai.AsyncOpenAI, broken: dict[str, Any]
) -> None:
    marker = new_marker()
    text = await streamed(client, marker, {"id": marker, "tries": [broken, {"text": TEXT}]})
    assert text == TEXT
    first, second = await fleet.ended(marker, 2)
    assert second.outcome == "ok"
    rows = await fleet.ledger(marker, 2)
    assert {row["attempt"] for row in rows} == {first.attempt, second.attempt}


@pytest.mark.parametrize("how", ["reset_after_chunks", "end_after_chunks"])
async def test_s2_a_break_after_content_is_one_error_and_no_second_try(
    fleet: Scripted, client: openai.AsyncOpenAI, how: str
) -> None:
    marker = new_marker()
    script = {"text": "one two three four", "chunks": 4, "chunk_interval_s": 0.1, how: 2}
    lines = await _raw_stream(fleet, marker, script)
    errors = [line for line in lines if '"error"' in line]
    assert errors == lines[-1:]  # typed, once, last: no [DONE] behind it
    shape = json.loads(errors[0])["error"]
    assert shape["type"]
    assert shape["code"]
    assert len(fleet.attempts(marker)) == 1
    assert [row["verdict"] for row in await fleet.ledger(marker)] == ["outcome"]
    with pytest.raises(openai.APIError):
        await streamed(client, new_marker(), script)


async def _raw_stream(fleet: Scripted, marker: str, script: dict[str, Any]) -> list[str]:
    fields = {"model": "scripted", "messages": QUESTION, "stream": True} | scripted(script, marker)
    async with (
        httpx.AsyncClient(timeout=60.0, trust_env=False) as plain,
        plain.stream(
            "POST",
            f"{fleet.base_url}/chat/completions",
            json=fields,
            headers={"x-request-id": marker},
        ) as answer,
    ):
        assert answer.status_code == httpx.codes.OK
        lines = [line async for line in answer.aiter_lines()]
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@pytest.mark.parametrize("script", [{"empty": True}, {"failed_terminal": True}], ids=["empty", "failed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_s3_ok_with_nothing_in_it_is_a_failure(
    fleet: Scripted, client: openai.AsyncOpenAI, script: dict[str, Any], stream: bool
) -> None:
    marker = new_marker()
    ask = streamed if stream else whole
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(client, marker, script)
    assert caught.value.status_code == 502
    assert len(await fleet.ended(marker, 3)) == 3

    marker = new_marker()
    assert await ask(client, marker, {"id": marker, "tries": [script, {"text": TEXT}]}) == TEXT


async def test_s4_silence_after_content_ends_in_an_error_and_frees_the_model(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    with pytest.raises(openai.APIError):
        await streamed(client, marker, {"text": "one two three", "chunks": 3, "hang_after_chunks": 1})
    (hung,) = await fleet.ended(marker)
    assert hung.outcome == "disconnected"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_s4_a_drip_below_the_least_rate_is_cut_off(
    fleet: Scripted, client: openai.AsyncOpenAI, stream: bool
) -> None:
    marker, text = new_marker(), "thirty characters, one by one."
    ask = streamed if stream else whole
    tries = [{"text": text, "drip_s": 0.9}, {"text": TEXT}]
    if stream:
        with pytest.raises(openai.APIError):
            await ask(client, marker, {"id": marker, "tries": tries})
    else:  # nobody has seen anything of the first try
        assert await ask(client, marker, {"id": marker, "tries": tries}) == TEXT
    dripped = (await fleet.ended(marker))[0]
    assert dripped.outcome == "disconnected"
    assert 1 <= dripped.chunks < len(text)


async def test_s4_silence_before_content_is_tried_elsewhere(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    tries = [{"hang_after_chunks": 0}, {"text": TEXT}]
    assert await streamed(client, marker, {"id": marker, "tries": tries}) == TEXT
    hung, well = await fleet.ended(marker, 2)
    assert (hung.outcome, well.outcome) == ("disconnected", "ok")


@pytest.mark.parametrize("split_bytes", [1, 3])
async def test_s6_characters_split_over_reads_come_whole(
    client: openai.AsyncOpenAI, split_bytes: int
) -> None:
    script = {"text": EMOJI, "split_bytes": split_bytes, "crlf": True, "comments": True}
    assert await streamed(client, new_marker(), script) == EMOJI
    assert await whole(client, new_marker(), script) == EMOJI


async def test_s7_parallel_tool_calls_are_the_same_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    calls = [
        {"id": f"call_{n}", "name": f"tool_{n}", "arguments": json.dumps({"n": n, "city": "東京" * n})}
        for n in range(3)
    ]
    script = scripted({"tool_calls": calls})
    answer = await client.chat.completions.create(model="scripted", messages=QUESTION, extra_body=script)
    async with client.chat.completions.stream(
        model="scripted", messages=QUESTION, extra_body=script
    ) as stream:
        final = await stream.get_final_completion()
    for message in (answer.choices[0].message, final.choices[0].message):
        got = [call for call in message.tool_calls or [] if call.type == "function"]
        assert [(c.id, c.function.name, c.function.arguments) for c in got] == [
            (call["id"], call["name"], call["arguments"]) for call in calls
        ]


@pytest.mark.parametrize("where", ["own_chunk", "last_with_choices", "every_chunk", "none", "zero"])
async def test_s8_usage_is_counted_once_wherever_it_comes(
    fleet: Scripted, client: openai.AsyncOpenAI, where: str
) -> None:
    marker = new_marker()
    stream = await client.chat.completions.create(
        model="scripted",
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=scripted({"text": TEXT, "usage_where": where}, marker),
        extra_headers={"x-request-id": marker},
    )
    chunks = [chunk async for chunk in stream]
    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert len(told) == 1
    assert told[0] is not None
    assert chunks[-1].usage == told[0]
    assert chunks[-1].choices == []
    (row,) = await fleet.ledger(marker)
    assert (row["input_tokens"], row["output_tokens"]) == (told[0].prompt_tokens, told[0].completion_tokens)
    assert bool(row["estimated"]) == (where == "none")
    (seen,) = await fleet.ended(marker)
    if where == "zero":
        assert told[0].completion_tokens == 0
    elif where != "none":
        assert (told[0].prompt_tokens, told[0].completion_tokens) == (seen.tokens_in, seen.tokens_out)
