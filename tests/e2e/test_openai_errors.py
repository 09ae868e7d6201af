"""Every error reaches the unmodified `openai` package in the shape it knows, and is not repeated."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.e2e.asked import QUESTION, TEXT, Sent, scripted
from tests.e2e.staged import Scripted, new_marker

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_unknown_model_is_not_found(client: openai.AsyncOpenAI, sent: Sent) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-nonesuch", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "invalid_request_error"
    assert len(sent.requests) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"n": 0}, "n"),
    ],
)
async def test_a_known_field_of_a_wrong_type_is_refused_by_name(
    client: openai.AsyncOpenAI, sent: Sent, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="scripted", messages=QUESTION, extra_body=fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert len(sent.requests) == 1


async def test_priority_quality_is_told_the_word_objective(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="objective"):
        await client.chat.completions.create(
            model="scripted", messages=QUESTION, extra_headers={"x-chimera-priority": "quality"}
        )


async def test_a_deadline_is_504_and_the_client_does_not_repeat_it(
    fleet: Scripted, client: openai.AsyncOpenAI, sent: Sent
) -> None:
    marker = new_marker()
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(
            model="scripted",
            messages=QUESTION,
            extra_body=scripted({"delay_s": 30}, marker),
            extra_headers={"x-chimera-deadline-ms": "700"},
        )
    assert caught.value.status_code == 504
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.type == "deadline_exceeded"
    assert len(sent.requests) == 1
    assert [one.outcome for one in await fleet.ended(marker)] == ["disconnected"]


async def test_r1_a_broken_backend_is_tried_three_times_in_all_and_by_the_worker_alone(
    fleet: Scripted, client: openai.AsyncOpenAI, sent: Sent
) -> None:
    marker = new_marker()
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(
            model="scripted",
            messages=QUESTION,
            extra_body=scripted({"status": 500}, marker),
            extra_headers={"x-request-id": marker},
        )
    assert caught.value.status_code == 502
    assert caught.value.type == "backend_error"
    assert len(sent.requests) == 1
    tries = await fleet.ended(marker, 3)
    assert [one.outcome for one in tries] == ["scripted:status_500"] * 3
    assert len({one.attempt for one in tries}) == 3
    rows = await fleet.ledger(marker, 3)
    assert {row["attempt"] for row in rows} == {one.attempt for one in tries}


async def test_our_own_refused_key_is_a_502_that_says_nothing_of_it(
    client: openai.AsyncOpenAI, sent: Sent
) -> None:
    shown = {"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(
            model="scripted", messages=QUESTION, extra_body=scripted({"status": 401, "error_body": shown})
        )
    assert caught.value.status_code == 502
    assert "sk-secret" not in caught.value.response.text
    assert len(sent.requests) == 1


async def test_r2_a_limit_of_the_backend_is_waited_out_as_it_says(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()
    tries = [{"status": 429, "retry_after": 1}, {"text": TEXT}]
    answer = await client.chat.completions.create(
        model="scripted", messages=QUESTION, extra_body=scripted({"id": marker, "tries": tries}, marker)
    )
    assert answer.choices[0].message.content == TEXT
    first, second = await fleet.ended(marker, 2)
    assert first.ended_s is not None
    assert second.started_s - first.ended_s >= 1.0


async def test_an_idempotency_key_replays_the_answer_and_pays_once(
    fleet: Scripted, client: openai.AsyncOpenAI
) -> None:
    marker = new_marker()

    async def ask() -> str | None:
        answer = await client.chat.completions.create(
            model="scripted",
            messages=QUESTION,
            extra_body=scripted(marker=marker),
            extra_headers={"Idempotency-Key": marker},
        )
        return answer.choices[0].message.content

    assert [await ask(), await ask()] == [TEXT, TEXT]
    assert len(fleet.attempts(marker)) == 1
    with pytest.raises(openai.UnprocessableEntityError):
        await client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "another body"}],
            extra_headers={"Idempotency-Key": marker},
        )


async def test_no_path_and_no_method_answers_outside_the_shape(fleet: Scripted) -> None:
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as plain:
        lost = await plain.get(f"{fleet.base_url}/nowhere")
        wrong = await plain.get(f"{fleet.base_url}/chat/completions")
    assert (lost.status_code, wrong.status_code) == (404, 405)
    for answer in (lost, wrong):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_prompt_beyond_the_context_is_the_callers_fault(
    client: openai.AsyncOpenAI, sent: Sent
) -> None:
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(
            model="real", messages=[{"role": "user", "content": "word " * 4000}], max_tokens=4
        )
    assert len(sent.requests) == 1


async def test_neither_prompt_nor_answer_is_in_any_log(fleet: Scripted, client: openai.AsyncOpenAI) -> None:
    asked, answered, torn = new_marker(), new_marker(), new_marker()
    scripts: list[dict[str, Any]] = [
        {"text": answered},
        {"text": f"{answered} {torn}", "chunks": 2, "reset_after_chunks": 1},
        {"status": 500, "error_body": torn},
        {"status": 400, "error_body": {"error": {"message": torn}}},
        {"bad_json_chunk": True, "text": f"{answered} {torn}", "chunks": 2},
    ]
    for script in scripts:
        for stream in (False, True):
            try:
                got = await client.chat.completions.create(
                    model="scripted",
                    messages=[{"role": "user", "content": asked}],
                    stream=stream,
                    extra_body=scripted(script),
                )
                if isinstance(got, openai.AsyncStream):
                    async for _ in got:
                        pass
            except openai.APIError:
                continue  # some must fail: what counts is what is written down of it
    logs = list(fleet.stage.state.logs.glob("*.log"))
    assert len(logs) >= 4
    for log in logs:
        written = log.read_text(errors="replace")
        assert [secret for secret in (asked, answered, torn) if secret in written] == [], log.name
